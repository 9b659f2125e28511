# Shared by run.sh and test.sh: what has to be on the machine before nelumbo can be built
# and used. Everything here looks first, installs only what is missing, and talks on stderr.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
  printf '%s\n' "$*" >&2
}

die() {
  say "error: $*"
  exit 1
}

have() {
  command -v "$1" >/dev/null 2>&1
}

# ---- what is there ---------------------------------------------------------------------

is_linux() {
  [[ $(uname -s) == Linux ]]
}

# Whether the dynamic linker finds a library, by its exact file name.
has_library() {
  local ldconfig=ldconfig
  have ldconfig || ldconfig=/sbin/ldconfig
  # The whole list is read, so that ldconfig does not die of a closed pipe under pipefail.
  "$ldconfig" -p 2>/dev/null | grep -F "$1 " >/dev/null
}

# Whether any Vulkan driver is registered, software or hardware.
has_vulkan_driver() {
  local name
  for name in "${VK_DRIVER_FILES:-}" "${VK_ICD_FILENAMES:-}"; do
    [[ -n $name ]] && return 0
  done
  compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null \
    || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null \
    || compgen -G '/usr/local/share/vulkan/icd.d/*.json' >/dev/null
}

# Whether some Python has pip. Only a download needs it.
has_pip() {
  python3 -m pip --version >/dev/null 2>&1 || python -m pip --version >/dev/null 2>&1
}

has_certificates() {
  [[ -n ${SSL_CERT_FILE:-} || -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]]
}

# Node 18 or later with npm: older ones cannot run the shader compiler's package.
has_node() {
  have npm && have node && node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)'
}

# ---- installing ------------------------------------------------------------------------

# One line for each need that is not met: "essential|optional apt-names # dnf # pacman # zypper".
# Without a Vulkan driver nelumbo still finds what GL offers, or says that there is nothing;
# without a C compiler there is no nelumbo.
missing_packages() {
  local for_tests=$1 need_download=$2
  has_library libvulkan.so.1 \
    || echo "optional libvulkan1 # vulkan-loader # vulkan-icd-loader # libvulkan1"
  has_vulkan_driver \
    || echo "optional mesa-vulkan-drivers # mesa-vulkan-drivers # vulkan-swrast # libvulkan_lvp"
  have cc \
    || echo "essential gcc libc6-dev # gcc glibc-devel # gcc # gcc glibc-devel"
  has_certificates \
    || echo "optional ca-certificates # ca-certificates # ca-certificates # ca-certificates"
  if [[ $need_download == yes ]] && ! has_pip; then
    echo "optional python3 python3-pip # python3 python3-pip # python python-pip # python3 python3-pip"
  fi
  if [[ $for_tests == yes ]]; then
    if ! has_library libEGL.so.1 || ! has_library libGL.so.1; then
      echo "optional libegl1 libgl1 libgl1-mesa-dri # mesa-libEGL mesa-libGL mesa-dri-drivers # libglvnd mesa # Mesa-libEGL1 Mesa-libGL1 Mesa-dri"
    fi
    has_node \
      || echo "optional nodejs npm # nodejs npm # nodejs npm # nodejs npm"
  fi
}

# Column N of the lines on stdin: 1 apt, 2 dnf, 3 pacman, 4 zypper.
package_names() {
  cut -d' ' -f2- | awk -F' # ' -v n="$1" '{ printf "%s%s", sep, $n; sep = " " }'
}

# install_missing FOR_TESTS NEED_DOWNLOAD (yes or no each): installs what is missing, as
# root or through sudo. Where it cannot, it says what is missing, and ends the script only
# if nothing can be built without it.
install_missing() {
  local missing
  is_linux || return 0
  missing=$(missing_packages "$@")
  [[ -n $missing ]] || return 0

  if ! have apt-get; then
    say "Some packages are missing. Install them with your package manager:"
    say "  dnf install $(package_names 2 <<<"$missing")"
    say "  pacman -S $(package_names 3 <<<"$missing")"
    say "  zypper install $(package_names 4 <<<"$missing")"
  elif [[ $(id -u) != 0 ]] && ! have sudo; then
    say "Missing, and neither root nor sudo to install: $(package_names 1 <<<"$missing")"
  else
    apt_install "$missing"
  fi
  if missing_packages "$@" | grep '^essential' >/dev/null; then
    die "there is no C compiler, and nelumbo cannot be built without one"
  fi
}

# Installs the packages of these lines: with the package lists that are there, else with
# fresh ones, else line by line, so that one that does not exist keeps no other away.
apt_install() {
  local missing=$1 line
  say "installing: $(package_names 1 <<<"$missing")"
  apt_get_install "$missing" 2>/dev/null && return 0
  apt_get update || say "the package lists could not be renewed"
  apt_get_install "$missing" && return 0
  while IFS= read -r line; do
    apt_get_install "$line" || say "not installed: $(package_names 1 <<<"$line")"
  done <<<"$missing"
}

apt_get_install() {
  local -a names
  read -ra names <<<"$(package_names 1 <<<"$1")"
  apt_get install -y --no-install-recommends "${names[@]}"
}

apt_get() {
  local -a as_root=()
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null >&2
}

# ---- building --------------------------------------------------------------------------

# rustup's folder is often missing from the PATH of non-interactive shells.
find_cargo() {
  if ! have cargo && [[ -x ${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo ]]; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
  fi
  have cargo || die "cargo is missing. Get Rust from https://rustup.rs, open a new shell, and run this again."
}

# Where cargo puts what it builds; absolute, so that it does not depend on the folder.
target_dir=${CARGO_TARGET_DIR:-$repo/target}
[[ $target_dir == /* ]] || target_dir=$PWD/$target_dir
[[ -z ${CARGO_TARGET_DIR:-} ]] || export CARGO_TARGET_DIR=$target_dir

# Where the program is once it has been built.
nelumbo=$target_dir/release/nelumbo

# Calls cargo on this repository, with everything it says on stderr.
cargo_quietly() {
  find_cargo
  (cd "$repo" && cargo "$@") >&2
}
