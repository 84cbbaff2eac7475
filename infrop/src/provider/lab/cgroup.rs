//! A control group for each host, in every hierarchy, so that a kubelet sees its own pods only.
//!
//! They lie below the supervisor's own groups: limits that hold for it hold for its hosts. Their paths are
//! recorded before they are made, so that those of a killed lab are found again.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    error::{At, Error},
    model::{Definition, Host},
    paths::Paths,
};

/// The mark of our groups, followed by the lab's id.
const PREFIX: &str = "infrop-lab-";

/// Processes of a killed host are gone in milliseconds; a group stays busy until then.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted hierarchy and our place in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The directory of this process's group.
    own: PathBuf,
    unified: bool,
    /// Whether it has the cpuset controller of version 1, whose groups are born without CPUs.
    cpuset: bool,
}

/// Makes the groups of a host; gives one directory per hierarchy.
pub(super) fn create(lab: &Definition, host: &Host, paths: &Paths) -> Result<Vec<PathBuf>, Error> {
    let mut groups = Vec::new();
    for hierarchy in hierarchies()? {
        let of_lab = lab_group(&hierarchy, lab);
        record(paths, &of_lab)?;
        let group = of_lab.join(host.machine(lab));
        for (directory, parent) in [(&of_lab, hierarchy.own.as_path()), (&group, of_lab.as_path())] {
            fs::create_dir_all(directory).at("create", directory)?;
            if hierarchy.cpuset {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let from = parent.join(file);
                    let value = fs::read_to_string(&from).at("read", &from)?;
                    let to = directory.join(file);
                    fs::write(&to, value.trim()).at("write", &to)?;
                }
            }
        }
        if hierarchy.unified {
            delegate(&of_lab)?;
        }
        groups.push(group);
    }
    Ok(groups)
}

/// The group of a lab in a hierarchy. In version 2 the supervisor sits in a group of its own beside the
/// hosts', because a group that has processes cannot hand controllers on.
fn lab_group(hierarchy: &Hierarchy, lab: &Definition) -> PathBuf {
    let name = format!("{PREFIX}{}", lab.id);
    match hierarchy.own.parent() {
        Some(parent) if hierarchy.own.ends_with(SUPERVISOR_GROUP) => parent.join(name),
        _ => hierarchy.own.join(name),
    }
}

const SUPERVISOR_GROUP: &str = "infrop-lab-supervisor";

/// Hands on to the groups below whatever controllers a group has.
fn delegate(group: &Path) -> Result<(), Error> {
    let controllers = group.join("cgroup.controllers");
    let available = fs::read_to_string(&controllers).at("read", &controllers)?;
    let file = group.join("cgroup.subtree_control");
    for controller in available.split_whitespace() {
        fs::write(&file, format!("+{controller}")).at("write", &file)?;
    }
    Ok(())
}

/// On a computer with version 2 only: moves the supervisor aside, so that its group can hand controllers on.
pub(super) fn prepare_supervisor() -> Result<(), Error> {
    let hierarchies = hierarchies()?;
    let [Hierarchy { own, unified: true, .. }] = hierarchies.as_slice() else { return Ok(()) };
    let aside = own.join(SUPERVISOR_GROUP);
    fs::create_dir_all(&aside).at("create", &aside)?;
    let file = aside.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string()).at("enter", &file)?;
    delegate(own)
}

/// How the supervisor is started: where systemd manages version 2, in a scope that is delegated to it.
pub(super) fn supervisor_command(lab: &Definition) -> Command {
    let systemd = Path::new("/run/systemd/system").is_dir();
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").is_file();
    if !(systemd && unified) {
        return Command::new(&lab.infrop);
    }
    let mut command = Command::new("systemd-run");
    command.args(["--quiet", "--scope", "--collect", "--property=Delegate=yes"]);
    command.arg(format!("--unit={PREFIX}{}", lab.id)).arg("--").arg(&lab.infrop);
    command
}

fn hierarchies() -> Result<Vec<Hierarchy>, Error> {
    let read = |path: &str| fs::read_to_string(path).at("read", Path::new(path));
    Ok(parse(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?))
}

/// Finds our directory in each mounted hierarchy.
fn parse(cgroup: &str, mountinfo: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let unified = controllers.is_empty();
        let mount = mountinfo.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            let matches = if unified {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && controllers.split(',').all(|name| options.split(',').any(|o| o == name))
            };
            matches.then(|| before.split(' ').nth(4)).flatten()
        });
        if let Some(mount) = mount {
            let own = Path::new(mount).join(path.trim_start_matches('/'));
            found.push(Hierarchy {
                own,
                unified,
                cpuset: controllers.split(',').any(|name| name == "cpuset"),
            });
        }
    }
    found
}

fn record(paths: &Paths, group: &Path) -> Result<(), Error> {
    let path = paths.cgroups();
    let line = format!("{}\n", group.display());
    let known = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.at("read", &path)?,
    };
    if known.contains(&line) {
        return Ok(());
    }
    let mut file = fs::File::options().create(true).append(true).open(&path).at("open", &path)?;
    file.write_all(line.as_bytes()).at("write", &path)
}

/// Removes the groups that were recorded for a lab whose hosts are dead.
pub(super) fn remove_recorded(paths: &Paths) -> Result<(), Error> {
    let path = paths.cgroups();
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.at("read", &path)?,
    };
    for line in text.lines() {
        let group = Path::new(line);
        // Whatever the file says, only groups of labs are removed.
        let ours = group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if ours && group.is_absolute() {
            remove(group)?;
        }
    }
    fs::remove_file(&path).at("remove", &path)
}

/// Removes a group and those below it, and ends processes that are still in them: their host is dead.
pub(super) fn remove(group: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + EMPTY_TIMEOUT;
    loop {
        match remove_below(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                kill_below(group);
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result.at("remove", group),
        }
    }
}

/// Kills what is in a group and those below it. What cannot be read or is gone already shows at the next try.
fn kill_below(group: &Path) {
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    // A process of a namespace that we do not see has number 0: that would be ourselves.
    for process in processes.lines().filter_map(|line| line.parse().ok()).filter(|id| *id > 1) {
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill_below(&entry.path());
        }
    }
}

fn remove_below(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_below(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_place_is_found_in_version_1_hierarchies() {
        let cgroup = "4:memory:/jobs/7\n3:cpuset:/\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n";
        let mountinfo = "\
            30 29 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            31 30 0:27 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n\
            32 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
            33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
            35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = parse(cgroup, mountinfo);
        let own: Vec<_> = found.iter().map(|h| h.own.to_str().unwrap().trim_end_matches('/')).collect();
        assert_eq!(
            own,
            [
                "/sys/fs/cgroup/memory/jobs/7",
                "/sys/fs/cgroup/cpuset",
                "/sys/fs/cgroup/cpu,cpuacct",
                "/sys/fs/cgroup/systemd",
                "/sys/fs/cgroup/unified"
            ]
        );
        assert_eq!(found.iter().map(|h| h.cpuset).collect::<Vec<_>>(), [false, true, false, false, false]);
        assert!(found[4].unified && !found[0].unified);
    }

    #[test]
    fn version_2_alone_has_one_hierarchy_and_hosts_beside_the_supervisor() {
        let mountinfo = "24 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = parse("0::/system.slice/lab.scope/infrop-lab-supervisor\n", mountinfo);
        let lab = Definition::new("demo".parse().unwrap(), "/r".into(), "/i".into()).unwrap();
        let expected = format!("/sys/fs/cgroup/system.slice/lab.scope/infrop-lab-{}", lab.id);
        assert_eq!(lab_group(&found[0], &lab), Path::new(&expected));
    }

    #[test]
    fn a_hierarchy_that_is_not_mounted_is_left_out() {
        assert!(parse("4:memory:/\n", "").is_empty());
    }

    #[test]
    fn only_groups_of_labs_are_removed_whatever_the_record_says() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().to_owned());
        let (ours, other) = (directory.path().join("infrop-lab-abc"), directory.path().join("other"));
        fs::create_dir_all(ours.join("host")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(paths.cgroups(), format!("{}\n{}\n", ours.display(), other.display())).unwrap();
        remove_recorded(&paths).unwrap();
        assert!(!ours.exists() && other.exists() && !paths.cgroups().exists());
        remove_recorded(&paths).unwrap();
    }
}
