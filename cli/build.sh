# Sourced by cli/quickstart.sh and tests/run.sh: what both need before they can show anything.
#   install_packages [--with-clang] [--with-emulator]  installs what is missing, through apt
#   build_touchstone [target...]     configures and builds into build/
# Set by the sourcing script: touchstone_root, the folder of the checkout.
# shellcheck shell=bash disable=SC2154

export CCACHE_BASEDIR=$touchstone_root # so that checkouts in different folders share what they compiled

say() { printf '== %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
package_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# missing_packages PACKAGE...: those that dpkg does not have. A tool that is in PATH counts however it came there.
missing_packages() {
    local package
    for package in "$@"; do
        case $package in
            g++) have "${CXX:-g++}" && continue ;;
            cmake | ccache | clang | patch) have "$package" && continue ;;
            ninja-build) have ninja && continue ;;
            pkg-config) have pkg-config && continue ;;
        esac
        package_installed "$package" || printf '%s ' "$package"
    done
}

# as_root COMMAND...: runs it as root without ever asking for a password; 1 when that cannot be.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# apt_install PACKAGE...: installs them, leaving out those that this release does not carry.
apt_install() {
    local known=() package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null >&2 || return 1
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); else say "no package $package here"; fi
    done
    [ ${#known[@]} -eq 0 ] && return 0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${known[@]}" \
        </dev/null >&2
}

install_packages() {
    local required=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev doctest-dev
        libeigen3-dev)
    local optional=(ccache pkg-config libmpfr-dev libbenchmark-dev libdnnl-dev)
    local options=" $* "
    if [[ $options == *" --with-clang "* ]]; then required+=(clang libomp-dev); fi
    # same_bits_aarch64 compiles for another architecture and runs that here.
    if [[ $options == *" --with-emulator "* ]]; then optional+=(g++-aarch64-linux-gnu qemu-user-static); fi
    if ! have dpkg-query || ! have apt-get; then
        say "no apt here: needed are the equivalents of ${required[*]}; cmake will say what it does not find"
        return 0
    fi
    local needed wanted
    needed=$(missing_packages "${required[@]}")
    wanted=$(missing_packages "${optional[@]}")
    if [ -n "$needed$wanted" ]; then
        say "missing packages: $needed$wanted"
        # shellcheck disable=SC2086  # lists of package names
        apt_install $needed $wanted || true
        if [ -n "$(missing_packages "${required[@]}")" ]; then
            printf 'These packages are needed and could not be installed from here. Run this, then start again:\n' >&2
            printf '    sudo apt-get update && sudo apt-get install -y %s\n' "$needed$wanted" >&2
            exit 2
        fi
        if [ -n "$(missing_packages "${optional[@]}")" ]; then
            say "going on without $(missing_packages "${optional[@]}")"
        fi
    fi
    # clang's sanitizer and fuzzer runtimes are a package of their own, named after its version.
    if [[ $options == *" --with-clang "* ]]; then
        local runtime
        runtime="libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
        if ! package_installed "$runtime" && apt-cache show "$runtime" >/dev/null 2>&1; then
            apt_install "$runtime" || { printf 'Run: sudo apt-get install -y %s\n' "$runtime" >&2; exit 2; }
        fi
    fi
}

# configure_and_build FOLDER TARGETS CMAKE_OPTION...: TARGETS is one word list, "all" for everything.
configure_and_build() {
    local folder=$1 targets=$2 generator=()
    shift 2
    if [ ! -f "$folder/CMakeCache.txt" ] && have ninja; then generator=(-G Ninja); fi
    cmake -S "$touchstone_root" -B "$folder" "${generator[@]}" "$@" >&2 || return 1
    # shellcheck disable=SC2086  # list of targets
    cmake --build "$folder" --parallel "$(nproc)" --target $targets >&2
}

build_touchstone() {
    say "building into build/"
    configure_and_build "$touchstone_root/build" "${*:-all}" -DCMAKE_BUILD_TYPE=Release
}
