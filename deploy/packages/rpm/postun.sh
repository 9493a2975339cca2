# After the files of the package are gone.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
fi
