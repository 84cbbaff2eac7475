//! Drop-ins of the kubelet's unit.

use std::{collections::BTreeMap, fs, io};

use common::{metadata::DropInName, software::SoftwareVersion};
use futures::future::BoxFuture;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::{failure::Failure, host::Host};

const DIRECTORY: &str = "/etc/systemd/system/kubelet.service.d";

/// Begins our files; others in the directory are the administrator's.
const MARK: &str = "# Written by node-agent.\n";

pub(super) const SOFTWARE: KubeletDropIns = KubeletDropIns;

#[derive(Debug)]
pub(super) struct KubeletDropIns;

/// Our files, without the mark.
fn ours(host: &Host) -> Result<BTreeMap<DropInName, String>, Failure> {
    let directory = host.path(DIRECTORY);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Failure::io("list", &directory, &error)),
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| Failure::io("list", &directory, &error))?;
        let Ok(name) = entry.file_name().to_string_lossy().parse::<DropInName>() else { continue };
        let text = host.read(format!("{DIRECTORY}/{name}"))?.unwrap_or_default();
        if let Some(text) = text.strip_prefix(MARK) {
            files.insert(name, text.to_owned());
        }
    }
    Ok(files)
}

impl Software for KubeletDropIns {
    fn name(&self) -> &'static str {
        "kubelet-drop-ins"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let files = ours(look.host)?;
        let version = version_of_content(&files)?;
        // None of our files is a version only where it was asked for.
        let known = !files.is_empty() || look.desired == Some(&version);
        let mut observed = Observed::now(known.then_some(version));
        observed.stale = look.is_unread(self);
        Ok(observed)
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let wanted = task.content(self, version, |one| one.kubelet_drop_ins.clone())?;
            task.mark_unread(self)?;
            for name in ours(task.host)?.keys().filter(|name| !wanted.contains_key(name)) {
                task.host.remove(format!("{DIRECTORY}/{name}"))?;
            }
            for (name, text) in &wanted {
                task.host.write(format!("{DIRECTORY}/{name}"), &format!("{MARK}{text}"), 0o644)?;
            }
            task.host.systemctl(&["daemon-reload"]).await?;
            task.refresh("kubelet.service", false).await?;
            task.mark_read(self)
        })
    }
}

#[cfg(test)]
mod tests {
    use common::metadata::Configuration;

    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    #[tokio::test]
    async fn our_files_come_and_go_and_others_stay() {
        let mut bench = Bench::new(FakeHost::silent());
        let content = |names: &[&str]| Configuration {
            kubelet_drop_ins: Some(
                names.iter().map(|name| (name.parse().unwrap(), "[Service]\n".to_owned())).collect(),
            ),
            ..Configuration::default()
        };
        let foreign = format!("{DIRECTORY}/50-admin.conf");
        bench.fake.write(&foreign, "[Service]\n");
        let two = bench.deliver(&KubeletDropIns, content(&["20-a.conf", "20-b.conf"]));
        bench.ensure(&KubeletDropIns, &two).await.unwrap();
        assert_eq!(bench.observe(&KubeletDropIns), Observed::now(Some(two)));
        let one = bench.deliver(&KubeletDropIns, content(&["20-b.conf"]));
        bench.ensure(&KubeletDropIns, &one).await.unwrap();
        assert_eq!(bench.observe(&KubeletDropIns), Observed::now(Some(one)));
        assert!(bench.fake.read(&format!("{DIRECTORY}/20-a.conf")).is_none());
        assert_eq!(bench.fake.read(&foreign).unwrap(), "[Service]\n");
        let none = bench.deliver(&KubeletDropIns, content(&[]));
        bench.ensure(&KubeletDropIns, &none).await.unwrap();
        assert_eq!(bench.observe(&KubeletDropIns), Observed::now(None));
        assert!(!bench.observe_wanting(&KubeletDropIns, Some(&none)).needs_change(&none));
    }
}
