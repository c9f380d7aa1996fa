# shellcheck shell=bash
# Which container engine there is. Sourced.
#
#   find_engine     prints docker or podman, the first that answers: a client whose daemon is away does not count

find_engine() {
    local name
    for name in docker podman; do
        if "$name" info >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    echo "${0##*/}: neither docker nor podman answers here (try: docker info, podman info)" >&2
    return 1
}
