#!/bin/sh
# Run by each `up`: a certificate authority in the volume `ca`, and a TLS file for each service in a
# volume of its own. A file that is due is renewed. Daemons load a renewed file by themselves.
set -eu
authority=/srv/ca/authority
[ -e "$authority" ] || walkeeper certs init --dir "$authority"

# Make or renew the file of a volume, for the user of its service: NAME MODE OPTIONS…
serve() {
    file=/srv/tls/$1/tls.pem mode=$2
    shift 2
    if [ -e "$file" ]; then
        walkeeper certs renew --dir "$authority" "$file"
    else
        walkeeper certs issue --dir "$authority" --out "$file" "$@"
    fi
    chown 10001:10001 "$file"
    chmod "$mode" "$file"
}

for number in 1 2 3; do
    serve "safekeeper$number" 600 --role safekeeper --name "$number" --host "safekeeper$number"
done
serve proposer 600 --role proposer --name primary --cluster main
serve admin 600 --role admin --name compose
# The user of a postgres image has another number in each image. The standby alone mounts this
# volume, and copies the file.
serve standby 644 --role replica --name standby
