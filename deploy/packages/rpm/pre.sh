# Before the files of the package are put in place: some of them belong to its group.
getent group pgweir >/dev/null || groupadd --system pgweir
getent passwd pgweir >/dev/null || useradd --system --gid pgweir --home-dir /nonexistent --no-create-home \
    --shell /sbin/nologin --comment pgweir pgweir
