//! A reboot that somebody asked for: a software whose version is any text that was not asked for before.

use common::{software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{Look, Observed, Software, Task};
use crate::{failure::Failure, host::Host, observe::BootId};

const FILE: &str = "/var/lib/node-agent/reboot.json";

pub(super) const SOFTWARE: RequestedReboot = RequestedReboot;

#[derive(Debug)]
pub(super) struct RequestedReboot;

/// The last request, and the boot it was heard in: another boot since then is its proof.
#[derive(Debug, Serialize, Deserialize)]
struct Heard {
    request: SoftwareVersion,
    boot: BootId,
}

fn heard(host: &Host) -> Result<Option<Heard>, Failure> {
    // A file nobody can read is no proof of a reboot.
    Ok(host.read(FILE)?.and_then(|text| serde_json::from_str(&text).ok()))
}

impl Software for RequestedReboot {
    fn name(&self) -> &'static str {
        "reboot"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(Heard { request, boot }) = heard(look.host)? else { return Ok(Observed::now(None)) };
        let version = (boot != look.facts.boot).then(|| request.clone());
        Ok(Observed { version, after_reboot: Some(request), stale: false })
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let heard = Heard { request: version.clone(), boot: task.facts.boot.clone() };
            let text = serde_json::to_string(&heard)
                .map_err(|error| Failure::of(Reason::ConfigurationFailed, &error))?;
            task.host.write(FILE, &text, 0o600)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    #[tokio::test]
    async fn only_another_boot_is_proof() {
        let mut bench = Bench::new(FakeHost::silent());
        bench.facts.boot = BootId::new("one");
        let request = "2026-11-16".parse().unwrap();
        assert!(bench.observe(&RequestedReboot).needs_change(&request));
        bench.ensure(&RequestedReboot, &request).await.unwrap();
        assert!(bench.observe(&RequestedReboot).needs_reboot(&request));
        bench.facts.boot = BootId::new("two");
        assert_eq!(bench.observe(&RequestedReboot), Observed::now(Some(request)));
    }
}
