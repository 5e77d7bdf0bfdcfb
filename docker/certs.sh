#!/bin/sh
# Run by each `up`: a certificate authority in the volume `ca`, and a TLS file for each service in a
# volume of its own. A file that is due is renewed. The daemons' --http has one token, which is made
# again if it is removed from the volume `ca`. Daemons load a new file by themselves.
set -eu
umask 077
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

token=/srv/ca/http-token
if [ ! -s "$token" ]; then
    python -c 'import secrets; print(secrets.token_hex(32))' > "$token.new"
    mv "$token.new" "$token"
fi
for name in safekeeper1 safekeeper2 safekeeper3 proposer; do
    install -o 10001 -g 10001 -m 600 "$token" "/srv/tls/$name/http-token"
done
# Prometheus has another number in each image. It alone mounts this volume.
install -m 644 "$token" /srv/monitor/http-token
