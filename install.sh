# Sets up poolish's environment for development, from any folder:
#
#     source path/to/poolish/install.sh     sets it up if needed and activates it in this shell (bash or zsh)
#     bash path/to/poolish/install.sh       rebuilds it from scratch, after a change of dependencies
#
# make does the work, with uv where it is installed. Sourced code must not end or change the caller's shell: no `set`,
# no `exit`, no `cd`, and nothing stays behind but the activated environment.

_poolish_install() {
    local home goal=develop
    if ! command -v make > /dev/null; then
        echo "poolish: install.sh needs make; install it and source this file again" >&2
        return 1
    fi
    if [ -n "${BASH_VERSION:-}" ]; then
        home=${BASH_SOURCE[0]}
    elif [ -n "${ZSH_VERSION:-}" ]; then
        home=${(%):-%x}
    else
        echo "poolish: source install.sh from bash or zsh; elsewhere run 'make develop'" >&2
        return 1
    fi
    home=$(CDPATH= cd -- "$(dirname -- "$home")" > /dev/null && pwd) || return 1
    if [ -n "${BASH_VERSION:-}" ] && [ "${BASH_SOURCE[0]}" = "$0" ]; then
        goal=rebuild
    fi
    if ! make --no-print-directory -C "$home" "$goal"; then
        echo "poolish: the environment was not set up; the error is above" >&2
        return 1
    fi
    if [ "$goal" = rebuild ]; then
        echo "poolish: rebuilt; to activate it in your shell: source $home/install.sh"
        return 0
    fi
    . "$home/.venv/bin/activate" || return 1
    echo "poolish: ready in $home/.venv ('deactivate' leaves it)"
}

if _poolish_install; then
    unset -f _poolish_install
else
    unset -f _poolish_install
    false # the status of the set-up is the status of `source`
fi
