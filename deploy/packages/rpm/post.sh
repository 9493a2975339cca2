# After the files of the package are in place; $1 is 1 at an installation, more at an upgrade.
if ! [ -d /var/log/pgweir ]; then
    install -d -o pgweir -g pgweir -m 0750 /var/log/pgweir
fi
if [ "$1" = 1 ]; then
    chown root:pgweir /etc/pgweir
    chmod 0750 /etc/pgweir
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ "$1" -gt 1 ] && systemctl --quiet is-active pgweir.service; then
        if systemctl --quiet is-active pgweir.socket; then
            systemctl restart pgweir.service || :
        else
            # The new version takes over from the running one.
            systemctl reload pgweir.service || :
        fi
    elif [ "$1" = 1 ]; then
        systemctl preset pgweir.service >/dev/null 2>&1 || :
    fi
fi
