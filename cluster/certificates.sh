#!/usr/bin/env bash
# Make what Ray needs to encrypt what its hosts say to each other (TLS), once, on a machine that you trust:
#   certificates.sh DIR HOST...      each HOST an IP address or a name that Ray's nodes have, as `ray start` says it
# writes DIR/ca.crt, and node.crt and node.key, which every node and every client gets, readable by Ray's user alone.
# The key of the authority is not kept: for more hosts make all of them anew. They hold for a year.
set -euo pipefail

if (($# < 2)); then
  echo "certificates.sh: wants a directory and at least one host: certificates.sh DIR HOST..." >&2
  exit 2
fi
directory=$1
shift
names=IP:127.0.0.1,DNS:localhost
for host in "$@"; do
  if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then names+=",IP:$host"; else names+=",DNS:$host"; fi
done
if [[ -e $directory/node.key ]]; then
  echo "certificates.sh: $directory has certificates already; remove them, or name another directory" >&2
  exit 1
fi
umask 077
mkdir -p "$directory"
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
made=("$directory/ca.crt" "$directory/node.crt" "$directory/node.key")
{
  openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=datarax_ray authority" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$private/ca.key" -out "$private/ca.crt"
  openssl req -newkey rsa:2048 -nodes -subj "/CN=datarax_ray node" -keyout "$private/node.key" -out "$private/node.csr"
  openssl x509 -req -in "$private/node.csr" -CA "$private/ca.crt" -CAkey "$private/ca.key" -CAcreateserial -days 365 \
    -extfile <(printf '%s\n' "subjectAltName=$names" authorityKeyIdentifier=keyid subjectKeyIdentifier=hash) -out "$private/node.crt"
} 2>"$private/said" || { cat "$private/said" >&2; exit 1; }
for file in "${made[@]}"; do mv "$private/${file##*/}" "$file"; done
absolute=$(cd "$directory" && pwd)
cat <<EOF
# In every shell that starts a node (ray start) or a program that connects to one; the same paths everywhere, or others:
export RAY_USE_TLS=1
export RAY_TLS_CA_CERT=$absolute/ca.crt
export RAY_TLS_SERVER_CERT=$absolute/node.crt
export RAY_TLS_SERVER_KEY=$absolute/node.key
EOF
