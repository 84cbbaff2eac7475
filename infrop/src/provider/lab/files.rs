//! The files of a lab and of its hosts: keys, and what makes each host itself.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use images::cache::remove_tree;
use program::Program;

use super::{
    boot::DATA_DIRECTORIES,
    error::{At, Error},
    model::{Definition, GATEWAY, Host, HostName, PREFIX_LENGTH, random_hex, replace},
    paths::Paths,
};

/// nspawn mounts control groups read only; containerd and the kubelet make groups of their own. `bind` is
/// needed: a remount of the whole hierarchy is busy.
const CGROUPS_SERVICE: &str = "\
[Unit]
Description=Control groups that containers can be put into
DefaultDependencies=no
ConditionVirtualization=systemd-nspawn
Before=containerd.service kubelet.service sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'for m in /sys/fs/cgroup /sys/fs/cgroup/*; do \
    if mountpoint -q $m; then mount -o remount,rw,bind $m; fi; done'

[Install]
WantedBy=sysinit.target
";

/// networkd waits for udev to announce the card, and a message of udev can be lost where many hosts boot at
/// once: it is repeated until the address is there.
const NETWORK_SERVICE: &str = "\
[Unit]
Description=The network card of this host is announced
ConditionVirtualization=systemd-nspawn
After=systemd-udevd.service systemd-networkd.service
Before=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'until ip -4 -oneline address show dev host0 | grep -q inet; do \\
    udevadm trigger --action=add --subsystem-match=net; sleep 0.2; done'
TimeoutStartSec=60

[Install]
WantedBy=multi-user.target
";

/// Writes everything of a new lab; the definition comes last, for it makes the lab count as made.
pub(super) async fn write_lab(lab: &mut Definition, names: &[HostName], paths: &Paths) -> Result<(), Error> {
    for directory in [paths.ssh_directory(), paths.hosts(), paths.bundles()] {
        fs::create_dir(&directory).at("create", &directory)?;
    }
    make_key(&paths.ssh_key(), &format!("infrop lab {}", lab.name)).await?;
    for name in names {
        let address = lab.free_address()?;
        lab.add(Host { name: name.clone(), address, host_key: String::new() });
    }
    let known = lab.hosts.clone();
    for host in &mut lab.hosts {
        host.host_key = write_host(host, &known, paths).await?;
    }
    write_ssh(lab, paths)?;
    lab.write(paths)
}

/// Makes the files what the definition says, whatever a killed supervisor was doing.
pub(super) fn settle(lab: &Definition, paths: &Paths) -> Result<(), Error> {
    write_ssh(lab, paths)?;
    remove_tree(&paths.removed())?;
    let hosts = paths.hosts();
    for entry in fs::read_dir(&hosts).at("list", &hosts)? {
        let path = entry.at("list", &hosts)?.path();
        // Half made, or half removed: a host is what the definition names.
        if !lab.hosts.iter().any(|host| path == paths.host(&host.name).root()) {
            remove_tree(&path)?;
        }
    }
    Ok(())
}

/// Writes what ssh reads of a lab, unless it is so.
pub(super) fn write_ssh(lab: &Definition, paths: &Paths) -> Result<(), Error> {
    let known_hosts =
        lab.hosts.iter().map(|host| format!("{} {}\n", host.name, host.host_key)).collect::<String>();
    for (path, text) in [(paths.known_hosts(), known_hosts), (paths.ssh_config(), ssh_config(lab, paths))] {
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            replace(&path, &text)?;
        }
    }
    Ok(())
}

/// Takes the files of a host out of the way; gives the directory that is now to be deleted, if there is one.
pub(super) fn move_away(name: &HostName, paths: &Paths) -> Result<Option<PathBuf>, Error> {
    let (host, removed) = (paths.host(name), paths.removed());
    fs::create_dir_all(&removed).at("create", &removed)?;
    let target = removed.join(random_hex(8)?);
    match fs::rename(host.root(), &target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.at("move away", host.root()).map(|()| Some(target)),
    }
}

/// How ssh reaches the hosts: keys are checked, and the connection starts inside the lab's network.
fn ssh_config(lab: &Definition, paths: &Paths) -> String {
    let mut text = String::new();
    for host in &lab.hosts {
        let _ = write!(
            text,
            "Host {name}\n    HostName {address}\n    HostKeyAlias {name}\n",
            name = host.name,
            address = host.address
        );
    }
    let _ = write!(
        text,
        "Host *\n    User root\n    IdentityFile {key}\n    IdentitiesOnly yes\n    UserKnownHostsFile {known}\n    \
         GlobalKnownHostsFile none\n    StrictHostKeyChecking yes\n    BatchMode yes\n    LogLevel ERROR\n    \
         ProxyCommand {infrop} lab connect --directory {directory} %h %p\n",
        key = paths.ssh_key().display(),
        known = paths.known_hosts().display(),
        infrop = lab.infrop.display(),
        directory = paths.root().display(),
    );
    text
}

/// Makes a host's directories and identity; gives its public host key. It can reach the `known` ones by name.
pub(super) async fn write_host(host: &Host, known: &[Host], paths: &Paths) -> Result<String, Error> {
    let place = paths.host(&host.name);
    // Of one that was never finished.
    remove_tree(place.root())?;
    let data = DATA_DIRECTORIES.map(|(name, _)| place.data(name));
    for directory in [place.upper(), place.work(), place.mount()].iter().chain(&data) {
        fs::create_dir_all(directory).at("create", directory)?;
    }
    let upper = place.upper();
    for (name, text) in texts(host, known) {
        write_below(&upper, name, &text)?;
    }
    write_below(&upper, "etc/machine-id", &(random_hex(16)? + "\n"))?;
    enable(&upper, "lab-cgroups.service", "/etc/systemd/system/", "sysinit.target")?;
    enable(&upper, "systemd-networkd.service", "/lib/systemd/system/", "multi-user.target")?;
    enable(&upper, "lab-network.service", "/etc/systemd/system/", "multi-user.target")?;
    // Announcing all devices of the computer is not for its hosts: each would wake the udevd of all others.
    let coldplug = upper.join("etc/systemd/system/systemd-udev-trigger.service");
    symlink("/dev/null", &coldplug).at("link", &coldplug)?;

    let ssh = upper.join("root/.ssh");
    fs::create_dir_all(&ssh).at("create", &ssh)?;
    for directory in [upper.join("root"), ssh.clone()] {
        set_mode(&directory, 0o700)?;
    }
    let public = paths.ssh_key().with_extension("pub");
    fs::copy(&public, ssh.join("authorized_keys")).at("copy", &public)?;

    let key = upper.join("etc/ssh/ssh_host_ed25519_key");
    make_key(&key, host.name.as_str()).await?;
    let public = key.with_extension("pub");
    Ok(fs::read_to_string(&public).at("read", &public)?.trim().to_owned())
}

/// What a provisioner would write on a real machine.
fn texts(host: &Host, known: &[Host]) -> [(&'static str, String); 7] {
    let name = &host.name;
    let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for Host { name, address, .. } in known {
        let _ = writeln!(hosts, "{address} {name}");
    }
    [
        ("etc/hostname", format!("{name}\n")),
        ("etc/hosts", hosts),
        // The bridge refuses at once, which is better than waiting; an address on loopback would make
        // CoreDNS ask itself.
        ("etc/resolv.conf", format!("nameserver {GATEWAY}\n")),
        (
            "etc/systemd/network/10-lab.network",
            format!(
                "[Match]\nName=host0\n\n[Network]\nAddress={}/{PREFIX_LENGTH}\nGateway={GATEWAY}\n\
                 LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
                host.address
            ),
        ),
        ("etc/sysctl.d/90-lab.conf", "net.ipv4.ip_forward = 1\n".to_owned()),
        ("etc/systemd/system/lab-cgroups.service", CGROUPS_SERVICE.to_owned()),
        ("etc/systemd/system/lab-network.service", NETWORK_SERVICE.to_owned()),
    ]
}

async fn make_key(path: &Path, comment: &str) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).at("create", parent)?;
    }
    Program::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"])
        .arg(path)
        .run()
        .await?;
    Ok(())
}

fn enable(upper: &Path, unit: &str, from: &str, target: &str) -> Result<(), Error> {
    let wants = upper.join(format!("etc/systemd/system/{target}.wants"));
    fs::create_dir_all(&wants).at("create", &wants)?;
    let link = wants.join(unit);
    symlink(format!("{from}{unit}"), &link).at("link", &link)
}

fn write_below(root: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = root.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).at("create", parent)?;
    }
    fs::write(&path, text).at("write", &path)?;
    set_mode(&path, 0o644)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("set the mode of", path)
}
