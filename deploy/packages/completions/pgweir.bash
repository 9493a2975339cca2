# shellcheck shell=bash
# Made from `pgweir --help`. To write it again: UPDATE=1 cargo test -p pgweir completions
_pgweir() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} first=""
    case $before in
        -u | --user)
            mapfile -t COMPREPLY < <(compgen -u -- "$word")
            return
            ;;
    esac
    case $word in
        -*) mapfile -t COMPREPLY < <(compgen -W "-d --daemon -q --quiet -R --reboot -u --user -v --verbose -V --version -h --help" -- "$word") ;;
        *)
            if [ "$COMP_CWORD" = 1 ]; then first="check import demo bench"; fi
            mapfile -t COMPREPLY < <(
                compgen -W "$first" -- "$word"
                compgen -f -X '!*.ini' -- "$word"
                compgen -d -- "$word"
            )
            ;;
    esac
}
complete -o filenames -F _pgweir pgweir
