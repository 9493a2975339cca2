# shellcheck shell=bash
# Made from `pgweir --help`. To write it again: UPDATE=1 cargo test -p pgweir completions
_pgweir() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} first="" options="-d --daemon -q --quiet -R --reboot -u --user -v --verbose -V --version -h --help --overlay --no-overlay"
    case $before in
        -u | --user)
            mapfile -t COMPREPLY < <(compgen -u -- "$word")
            return
            ;;
    esac
    case ${COMP_WORDS[1]} in
        check) options="--connect --user --strict --json --overlay --no-overlay --help" ;;
        doctor) options="--user --json --overlay --no-overlay --help" ;;
        top) options="--url --interval --once --overlay --no-overlay --help" ;;
        import) options="--from --output --force --users --hba --pool-mode --help" ;;
        ctl) options="--url --json --wait --timeout --force --overlay --no-overlay --help" ;;
        cache) options="--every --seconds --url --json --overlay --no-overlay --help" ;;
        node) options="--url --data --from --user --slot --port --set --start --stop --bindir --config-file --tablespace-mapping --waldir --checkpoint --copy --max-lag-bytes --timeout --dry-run --overlay --no-overlay --help" ;;
        pair) options="--address --interface --peer --here --peer-interface --router-id --url --only --check --help" ;;
        adopt) options="--image --root --help" ;;
        entrypoint) options="--output --overlay --no-overlay --help" ;;
    esac
    case $word in
        -*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word") ;;
        *)
            if [ "$COMP_CWORD" = 1 ]; then first="check doctor import adopt ctl cache top node pair entrypoint demo bench"; fi
            if [ "${COMP_WORDS[1]}" = ctl ]; then
                # Names come from the running pooler, if this user may look at it.
                case $before in
                    attach | drain | detach | switchover | promote)
                        first=$(pgweir ctl nodes 2>/dev/null | awk 'NR > 1 { print $1 "." $2 }') ;;
                    pools | clients | servers | pause | resume)
                        first=$(pgweir ctl databases 2>/dev/null | awk 'NR > 1 { print $1 }') ;;
                    stop) first="fast smart immediate" ;;
                    *) first="nodes clusters pools clients servers databases peers attach drain detach switchover promote pause resume reload stop log-level show" ;;
                esac
                mapfile -t COMPREPLY < <(compgen -W "$first" -- "$word")
                return
            fi
            if [ "${COMP_WORDS[1]}" = node ] && [ "$COMP_CWORD" = 2 ]; then first="add rebuild remove"; fi
            if [ "${COMP_WORDS[1]}" = cache ] && [ "$COMP_CWORD" = 2 ]; then first="verify"; fi
            mapfile -t COMPREPLY < <(
                compgen -W "$first" -- "$word"
                compgen -f -X '!*.ini' -- "$word"
                compgen -d -- "$word"
            )
            ;;
    esac
}
complete -o filenames -F _pgweir pgweir
