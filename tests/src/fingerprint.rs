//! Everything on a host's disk, to show that nothing changed but what was meant to.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;

use crate::lab::TestLab;

/// What a host and its package manager write by themselves, and what node-agent writes for any plan. What dpkg and
/// apt know of packages is compared as they tell it.
const EVER_CHANGING: [&str; 16] = [
    "/tmp/*",
    "/var/cache/*",
    "/var/lib/apt/extended_states",
    "/var/lib/apt/lists",
    "/var/lib/dpkg/lock*",
    "/var/lib/dpkg/status*",
    "/var/lib/dpkg/triggers/*",
    "/var/lib/dpkg/updates",
    "/var/lib/systemd/random-seed",
    "/var/lib/systemd/timers",
    "/var/log/*",
    "/var/tmp/*",
    "/var/lib/node-agent",
    "/etc/apt/keyrings/node-agent-*",
    "/etc/apt/preferences.d/node-agent-*",
    "/etc/apt/sources.list.d/node-agent-*",
];

/// The fewest entries that a host has: without them something was not looked at.
const FEWEST_ENTRIES: usize = 10_000;

/// What a plan or the test itself is meant to change on a host.
#[derive(Debug, Clone, Copy)]
pub struct Meant<'a> {
    /// Packages: their files, their entries at dpkg and apt, and whether their services are enabled.
    pub packages: &'a [&'a str],
    /// Files and directories, as patterns of find.
    pub paths: &'a [&'a str],
}

/// A host as it was: files with text, mode and owner, links (units are enabled by them), users, packages, mounts.
#[derive(Debug)]
pub struct Fingerprint<'a> {
    lab: &'a TestLab,
    host: String,
    meant: Meant<'a>,
    before: Snapshot,
}

impl<'a> Fingerprint<'a> {
    /// Takes it of a host.
    pub async fn take(lab: &'a TestLab, host: &str, meant: Meant<'a>) -> anyhow::Result<Self> {
        let before = Snapshot::take(lab, host, meant).await?;
        Ok(Self { lab, host: host.to_owned(), meant, before })
    }

    /// Whether the host is still the same beside what was meant to change.
    pub async fn check(&self) -> anyhow::Result<()> {
        let after = Snapshot::take(self.lab, &self.host, self.meant).await?;
        let differences = self.before.differences(&after);
        ensure!(
            differences.is_empty(),
            "something else changed on {}:\n{}",
            self.host,
            differences.join("\n")
        );
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Snapshot {
    /// What is known of each file, package and mount.
    entries: BTreeMap<String, String>,
    /// The files of packages that are meant to change.
    packaged: BTreeSet<String>,
}

impl Snapshot {
    async fn take(lab: &TestLab, host: &str, meant: Meant<'_>) -> anyhow::Result<Self> {
        let Meant { packages, paths } = meant;
        let mut pruned: Vec<String> =
            EVER_CHANGING.iter().chain(paths).map(|path| format!("-path '{path}'")).collect();
        pruned.extend(packages.iter().map(|name| format!("-path '/var/lib/dpkg/info/{name}.*'")));
        let find = format!("find / -xdev '(' {} ')' -prune -o", pruned.join(" -o "));
        let names = packages.join(" ");
        // Mounts below these come and go with pods and sessions.
        let script = format!(
            "{find} -printf 'entry\\t%p\\t%y %m %U:%G %l\\n'\n\
             {find} -type f -print0 | xargs -0 sha256sum | sed 's/\\([0-9a-f]*\\)  \\(.*\\)/entry\\t\\2\\t\\1/'\n\
             findmnt --raw --noheadings --output TARGET,FSTYPE | sed 's/\\(.*\\) \\(.*\\)/entry\\tmount \\1\\t\\2/' \
             | {{ grep -vP '\\tmount /(run|var/lib/kubelet|var/lib/containerd)/' || true; }}\n\
             dpkg-query --show --showformat 'entry\\tpackage ${{Package}}\\t${{Version}} ${{Status}}\\n'\n\
             apt-mark showauto | sed 's/.*/entry\\tpackage &\\t, automatic/'\n\
             for name in {names}; do\n\
                 dpkg-query --listfiles $name 2>/dev/null | sed 's/^/packaged\\t/' || true\n\
                 echo \"packaged\tpackage $name\"\n\
             done"
        );
        let snapshot = Self::parse(&lab.run(host, &script).await?);
        ensure!(snapshot.entries.len() > FEWEST_ENTRIES, "a host has more than {:?}", snapshot.entries);
        Ok(snapshot)
    }

    fn parse(text: &str) -> Self {
        let mut snapshot = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(3, '\t');
            match (words.next(), words.next(), words.next()) {
                (Some("entry"), Some(key), Some(value)) => {
                    let entry = snapshot.entries.entry(key.to_owned()).or_default();
                    entry.push_str(value);
                }
                (Some("packaged"), Some(key), None) => {
                    snapshot.packaged.insert(key.to_owned());
                }
                _ => {}
            }
        }
        snapshot
    }

    fn differences(&self, after: &Self) -> Vec<String> {
        let packaged: BTreeSet<&str> =
            self.packaged.iter().chain(&after.packaged).map(String::as_str).collect();
        let keys: BTreeSet<&String> = self.entries.keys().chain(after.entries.keys()).collect();
        keys.into_iter()
            .map(|key| (key, self.entries.get(key), after.entries.get(key)))
            .filter(|(_, before, after)| before != after)
            .filter(|(key, before, after)| {
                // Many packages share a directory: none may change it.
                let is_shared = |entry: &String| entry.starts_with("d ");
                let stays = before.is_some_and(is_shared) && after.is_some_and(is_shared);
                stays || !(packaged.contains(key.as_str()) || enables(key, &packaged))
            })
            .map(|(key, before, after)| format!("{key}: {before:?}, now {after:?}"))
            .collect()
    }
}

/// Whether a file says that a unit of these packages is enabled, for systemd or for dpkg's scripts.
fn enables(path: &str, packaged: &BTreeSet<&str>) -> bool {
    let Some((directory, name)) = path.rsplit_once('/') else { return false };
    let unit = name.strip_suffix(".dsh-also").unwrap_or(name);
    let directories = ["/etc/systemd/system", "/var/lib/systemd/deb-systemd-helper-enabled"];
    directories.iter().any(|one| directory.starts_with(one))
        && packaged.contains(&*format!("/usr/lib/systemd/system/{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
entry\t/etc/passwd\tf 644 0:0 
entry\t/etc/passwd\taaaa
entry\t/usr/bin\td 755 0:0 
entry\tpackage kubelet\t1.36.4-1.1 hold ok installed
entry\tpackage runc\t1.1 install ok installed
packaged\tpackage kubelet
";

    fn differences(more: &str, from: &str, to: &str) -> Vec<String> {
        let after = BEFORE.replace(from, to) + more;
        Snapshot::parse(BEFORE).differences(&Snapshot::parse(&after))
    }

    #[test]
    fn what_was_meant_to_change_may() {
        assert_eq!(differences("", "1.36.4", "1.37.1"), Vec::<String>::new());
        let installed = "\
entry\t/usr/bin/kubelet\tf 755 0:0 
entry\t/etc/systemd/system/multi-user.target.wants/kubelet.service\tl 777 0:0 /usr/lib/systemd/system/kubelet.service
packaged\t/usr/bin/kubelet
packaged\t/usr/bin
packaged\t/usr/lib/systemd/system/kubelet.service
";
        assert_eq!(differences(installed, "", ""), Vec::<String>::new());
    }

    #[test]
    fn nothing_else_may() {
        for (more, from, to) in [
            ("", "aaaa", "bbbb"),
            ("", "f 644 0:0", "f 664 0:0"),
            ("", "runc\t1.1", "runc\t1.2"),
            ("packaged\t/usr/bin\n", "d 755", "d 777"),
            ("entry\t/usr/bin/other\tf 755 0:0 \n", "", ""),
            ("entry\t/etc/systemd/system/multi-user.target.wants/other.service\tl\n", "", ""),
            ("entry\tmount /mnt\text4\n", "", ""),
        ] {
            assert_eq!(differences(more, from, to).len(), 1, "{more}{to}");
        }
    }
}
