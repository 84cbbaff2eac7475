//! Booting a host: the nspawn command line, and the step between the supervisor and nspawn.

use std::{ffi::OsString, fs, os::unix::process::CommandExt, path::PathBuf, process::Command};

use super::{
    error::{At, Error},
    model::{Definition, Host},
    paths::Paths,
};

/// The bridge in the lab's network namespace.
pub(super) const BRIDGE: &str = "br0";

/// How nspawn ends when the host asked for a reboot.
pub(super) const REBOOT_STATUS: i32 = 133;

/// Directories on the real disk: containerd's overlays do not work on top of the host's overlay, and the
/// kubelet measures the file system it is on.
pub(super) const DATA_DIRECTORIES: [(&str, &str); 2] =
    [("containerd", "/var/lib/containerd"), ("kubelet", "/var/lib/kubelet")];

/// Where hosts see what the lab offers them.
pub const BUNDLES_ON_HOSTS: &str = "/opt/infrop/bundles";

/// The name there of the packages that hosts without a network need beside a bundle: see [`images::site`].
pub const SITE: &str = "site";

/// System calls that nspawn would refuse and container runtimes need.
const SYSTEM_CALLS: &str = "@mount @module @keyring @raw-io @privileged bpf perf_event_open";

/// The arguments of systemd-nspawn for a host.
pub(super) fn arguments(lab: &Definition, host: &Host, paths: &Paths) -> Vec<OsString> {
    let place = paths.host(&host.name);
    let mut arguments: Vec<OsString> = vec!["--quiet".into(), "--directory".into(), place.mount().into()];
    let mut option = |name: &str, value: &str| arguments.push(format!("--{name}={value}").into());
    option("machine", &host.machine(lab));
    option("hostname", host.name.as_str());
    option("network-bridge", BRIDGE);
    option("capability", "all");
    option("private-users", "no");
    option("system-call-filter", SYSTEM_CALLS);
    option("bind", "/dev/kmsg");
    option("console", "read-only");
    // Nobody else is to manage the machine: this computer may run without systemd.
    option("register", "no");
    for (name, target) in DATA_DIRECTORIES {
        option("bind", &format!("{}:{target}", place.data(name).display()));
    }
    // A directory, so that what is put there later appears on hosts that run.
    option("bind-ro", &format!("{}:{BUNDLES_ON_HOSTS}", paths.bundles().display()));
    arguments.extend(["--keep-unit".into(), "--boot".into()]);
    // For the host's systemd: what it starts and stops is shown on the console.
    arguments.push("systemd.show_status=true".into());
    arguments
}

/// Becomes systemd-nspawn, inside the given control groups.
///
/// A process of its own (`infrop lab boot`) does this, because it must happen between fork and exec.
pub fn boot(cgroups: &[PathBuf], arguments: &[OsString]) -> Result<std::convert::Infallible, Error> {
    for group in cgroups {
        let file = group.join("cgroup.procs");
        fs::write(&file, std::process::id().to_string()).at("enter", &file)?;
    }
    let program = PathBuf::from("systemd-nspawn");
    let error = Command::new(&program)
        .args(arguments)
        // The kubelet and containerd write to /proc/sys and /sys.
        .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "1")
        .exec();
    Err(error).at("start", &program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_machine_network_and_what_hosts_see() {
        let lab = Definition::new("demo".parse().unwrap(), "/r".into(), "/i".into()).unwrap();
        let address = lab.free_address().unwrap();
        let host = Host { name: "cp1".parse().unwrap(), address, host_key: String::new() };
        let line = arguments(&lab, &host, &Paths::new("/labs/demo".into()));
        let has = |text: &str| line.iter().any(|argument| argument == text);
        assert!(has(&format!("--machine={}-11", lab.id)));
        assert!(has("--hostname=cp1") && has("--network-bridge=br0"));
        assert!(has("--bind-ro=/labs/demo/bundles:/opt/infrop/bundles"));
        assert!(has("--bind=/labs/demo/hosts/cp1/data/containerd:/var/lib/containerd"));
    }
}
