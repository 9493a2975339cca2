# Before the files of the package go; $1 is 0 when it is removed and not upgraded.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now pgweir.socket pgweir-http.socket pgweir.service || :
fi
