//! Software that is one configuration file of a service.

use common::{disruption::Disruption, metadata::Configuration, software::SoftwareVersion};
use futures::future::BoxFuture;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::failure::Failure;

/// A file whose whole text is the content.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) mode: u32,
    pub(crate) unit: &'static str,
    pub(crate) content: fn(&Configuration) -> Option<&String>,
}

impl Software for ConfigFile {
    fn name(&self) -> &'static str {
        self.name
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(text) = look.host.read(self.path)? else { return Ok(Observed::now(None)) };
        let mut observed = Observed::now(Some(version_of_content(&text)?));
        observed.stale = look.is_unread(self);
        Ok(observed)
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let text = task.content(self, version, |one| (self.content)(one).cloned())?;
            task.mark_unread(self)?;
            task.host.write(self.path, &text, self.mode)?;
            // A change that disturbs nothing is one that the service reads when told, without a restart.
            let reloads = self.disruption() == Disruption::None;
            task.refresh(self.unit, reloads).await?;
            task.mark_read(self)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake::FakeHost,
        software::{
            containerd_config::SOFTWARE as CONTAINERD_CONFIG, haproxy_config::SOFTWARE as HAPROXY_CONFIG,
            testing::Bench,
        },
    };

    fn content(text: &str) -> Configuration {
        Configuration {
            containerd_config: Some(text.into()),
            haproxy_config: Some(text.into()),
            ..Configuration::default()
        }
    }

    #[tokio::test]
    async fn the_version_is_the_hash_of_the_file_and_the_service_hears_of_it() {
        for (software, command) in [
            (&CONTAINERD_CONFIG, "systemctl restart containerd.service"),
            (&HAPROXY_CONFIG, "systemctl reload-or-restart haproxy.service"),
        ] {
            let mut bench = Bench::new(FakeHost::silent());
            bench.start(software.unit);
            let version = bench.deliver(software, content("version = 3\n"));
            assert_eq!(bench.observe(software), Observed::now(None));
            bench.ensure(software, &version).await.unwrap();
            assert_eq!(bench.observe(software), Observed::now(Some(version)));
            assert_eq!(bench.fake.commands(), [command]);
            bench.fake.write(software.path, "version = 3 \n");
            assert_ne!(
                bench.observe(software).version.unwrap(),
                version_of_content(&"version = 3\n").unwrap()
            );
        }
    }

    #[tokio::test]
    async fn a_service_that_has_not_read_the_file_is_not_done() {
        let mut bench = Bench::new(FakeHost::new(|_| Err("job failed".into())));
        let version = bench.deliver(&CONTAINERD_CONFIG, content("x"));
        // One that does not run reads it when it starts.
        bench.ensure(&CONTAINERD_CONFIG, &version).await.unwrap();
        bench.start(CONTAINERD_CONFIG.unit);
        bench.ensure(&CONTAINERD_CONFIG, &version).await.unwrap_err();
        assert!(bench.observe(&CONTAINERD_CONFIG).needs_change(&version));
    }
}
