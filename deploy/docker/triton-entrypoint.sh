#!/bin/sh
# Starts NVIDIA's Triton the way model sync needs it. Whoever may load models runs code in it, so its control APIs ask for
# a key: the one in the file, which is made if there is none. deploy/tritonserver/key.py does the same for the CPU server.
set -eu
file=${TRITON_GATEWAY_TRITON_KEY_FILE:-/keys/triton}
fail() { echo "error: $1" >&2; exit 1; }
if [ ! -e "$file" ]; then
    umask 077
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file.$$" && mv -n "$file.$$" "$file" ||
        fail "no key for Triton's control APIs: $file is missing and cannot be made; mount a Secret or a volume there"
fi
key=$(cat "$file") || fail "the key file $file cannot be read"
case $key in
*[!A-Za-z0-9_-]* | '') fail "$file holds no key: 16 or more of A-Z, a-z, 0-9, - and _ are one (openssl rand -hex 32)" ;;
esac
[ ${#key} -ge 16 ] || fail "the key in $file is shorter than 16 characters (openssl rand -hex 32)"
apis=model-repository,shared-memory,trace,logging:triton-gateway-key
# explicit: sync loads and unloads; one broken model must not end the server; requests in flight get 30 s
exec tritonserver --model-repository=/models --model-control-mode=explicit --exit-on-error=false \
    --strict-readiness=false --exit-timeout-secs=30 \
    "--http-restricted-api=$apis=$key" "--grpc-restricted-protocol=$apis=$key" "$@"
