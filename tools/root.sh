# shellcheck shell=bash
# root.sh, sourced: a clean Debian in a folder, with nothing of this machine but its network: mirrors, pip's settings and the
# folders that those name. Needs root and debootstrap.

why_no_root() # prints why none can be made here; nothing: it can
{
    if [[ $(id -u) != 0 ]]; then
        echo 'only root can make one'
    elif ! command -v debootstrap >/dev/null; then
        echo 'no debootstrap here (apt install debootstrap)'
    elif ! unshare --mount true 2>/dev/null; then
        echo 'no namespace can be made here'
    fi
}

make_root() # make_root SUITE FOLDER PACKAGE...: unless it is there; fails where it can't be had, FOLDER.log says why
{
    local mirror file suite=$1 root=$2
    local whole=$root/var/lib/dpkg/.dpro-whole
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m 1 '/debian$')
    if [[ ! -e $whole ]]; then
        rm -rf --one-file-system "$root"
        mkdir -p "$root"
        chmod 755 "$root" # its / is anyone's, as in every system
        debootstrap --variant=minbase "$suite" "$root" "${mirror:-http://deb.debian.org/debian}" >"$root.log" 2>&1 || return
    fi
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [[ ! -e $file ]] || cp -L "$file" "$root$file"
    done
    apt-config dump | grep -i '^Acquire::[a-z]*::Proxy' >"$root/etc/apt/apt.conf.d/90proxy"
    for file in .config/pip/pip.conf .pip/pip.conf; do
        [[ ! -e $HOME/$file ]] || { mkdir -p "$root/root/$(dirname "$file")" && cp -L "$HOME/$file" "$root/root/$file"; }
    done
    # debootstrap knows no package that another one stands for
    [[ -e $whole ]] || in_root "$root" DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update && apt-get install -y --no-install-recommends "$@"' \
        apt ca-certificates "${@:3}" >>"$root.log" 2>&1 || return
    file=/etc/ssl/certs/ca-certificates.crt
    [[ ! -e $file ]] || cp -L "$file" "$root$file"
    touch "$whole"
}

in_root() # in_root FOLDER COMMAND...: in that system; what it mounted and started ends with it
{
    local variables=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin) variable folders
    while IFS= read -r variable; do
        variables+=("$variable")
    done < <(env | grep -iE '^(PIP_|http_proxy=|https_proxy=|no_proxy=)')
    # folders that pip's settings name, with wheels or an index
    folders=$({ cat /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; env | grep '^PIP_'; } 2>/dev/null |
        sed 's,file://,,g; s,[^ ]*://[^ ]*,,g' | grep -oE '/[^ ]+' | sed 's,/simple/*$,,' | sort -u) # an index names files beside it
    # shellcheck disable=SC2016
    unshare --mount --pid --fork bash -c '
        root=$1 folders=$2
        shift 2
        mount --make-rslave /
        for folder in $folders; do
            [[ ! -d $folder ]] || { mkdir -p "$root$folder" && mount --bind -o ro "$folder" "$root$folder"; }
        done
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || exit
        exec chroot "$root" env -i "$@"' in_root "$1" "$folders" "${variables[@]}" "${@:2}" </dev/null
}
