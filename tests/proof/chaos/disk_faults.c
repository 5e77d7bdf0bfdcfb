/* A disk that is slow, fails or lies: preloaded into a safekeeper (LD_PRELOAD), steered at run time
 * through a small file that both sides map (CHAOS_DISK names it; layout: steered_disk.py).
 *
 * Only files whose path contains `match` are touched. A sync that fails does not sync, and the next
 * one succeeds, as Linux does it: whoever retries an fsync believes in bytes that are not there.
 * `lie` makes every sync a success that does nothing, for the proof that the checker can fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    uint32_t delay_ms, fail_syncs, fail_writes, lie; /* written by the runner */
    uint32_t delayed, failed, lied;                  /* counted here */
    char match[228];
};

static struct control *control;

__attribute__((constructor)) static void map_control(void)
{
    const char *name = getenv("CHAOS_DISK");
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *mapped;
    if (fd < 0)
        return;
    mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        control = mapped;
    close(fd);
}

static int is_meant(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return path[0] == '/' && strstr(path, control->match) != NULL;
}

/* Takes one of `count` failures; several threads may ask at once. */
static int take(uint32_t *count)
{
    uint32_t left = __atomic_load_n(count, __ATOMIC_SEQ_CST);
    while (left > 0)
        if (__atomic_compare_exchange_n(count, &left, left - 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            __atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
            return 1;
        }
    return 0;
}

static int synced(int fd, const char *name)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (control && (control->delay_ms || control->fail_syncs || control->lie) && is_meant(fd)) {
        if (control->delay_ms) {
            struct timespec pause = {control->delay_ms / 1000,
                                     control->delay_ms % 1000 * 1000000L};
            __atomic_add_fetch(&control->delayed, 1, __ATOMIC_SEQ_CST);
            nanosleep(&pause, NULL);
        }
        if (take(&control->fail_syncs)) {
            errno = EIO;
            return -1;
        }
        if (control->lie) {
            __atomic_add_fetch(&control->lied, 1, __ATOMIC_SEQ_CST);
            return 0;
        }
    }
    return real(fd);
}

static int write_fails(int fd)
{
    if (!control || !control->fail_writes || !is_meant(fd) || !take(&control->fail_writes))
        return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) { return synced(fd, "fsync"); }

int fdatasync(int fd) { return synced(fd, "fdatasync"); }

#define WRITER(name, parameters, arguments)                                                    \
    ssize_t name parameters                                                                    \
    {                                                                                          \
        ssize_t(*real) parameters = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);            \
        return write_fails(fd) ? -1 : real arguments;                                          \
    }

WRITER(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITER(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITER(pwritev64, (int fd, const struct iovec *parts, int count, off64_t at),
       (fd, parts, count, at))
WRITER(pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags),
       (fd, parts, count, at, flags))
