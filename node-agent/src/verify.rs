//! Whether the services work after a change.

use std::time::Duration;

use common::state::Reason;

use crate::{
    failure::Failure,
    host::Host,
    observe::{HostState, ServiceState},
    socket, software,
};

/// Where the kubelet says how it is, unless its configuration moves it.
const KUBELET_PORT: u16 = 10248;

const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// A kubelet answers some seconds after its start; on a busy control plane later.
const KUBELET_PATIENCE: Duration = Duration::from_mins(3);

/// Services that a host in a cluster cannot be without.
const NEEDED_IN_A_CLUSTER: [&str; 2] = ["containerd.service", "kubelet.service"];

/// Checks the services of the software that is there.
pub async fn verify(host: &Host, seen: &HostState) -> Result<(), Failure> {
    for one in software::ALL {
        let Some(unit) = one.unit() else { continue };
        let there = seen.observed(one.name()).is_some_and(|observed| observed.after_reboot.is_some());
        let state = seen.facts.services.get(unit).copied().unwrap_or_default().state;
        let needed = seen.facts.joined && NEEDED_IN_A_CLUSTER.contains(&unit);
        let failed = state == ServiceState::Failed;
        if there && (failed || (needed && state != ServiceState::Active)) {
            let what = if failed { "has failed" } else { "does not run" };
            let message = format!("{unit} {what}: see journalctl -u {unit}");
            return Err(Failure::new(Reason::ServiceFailed, message));
        }
    }
    if seen.facts.joined { wait_for_kubelet(host).await } else { Ok(()) }
}

async fn wait_for_kubelet(host: &Host) -> Result<(), Failure> {
    let Some(port) = health_port(&host.read(KUBELET_CONFIG)?.unwrap_or_default()) else { return Ok(()) };
    let address = format!("127.0.0.1:{port}");
    let deadline = tokio::time::Instant::now() + KUBELET_PATIENCE;
    loop {
        let problem = match socket::probe(&address, "/healthz").await {
            Ok(code) if code.is_success() => return Ok(()),
            Ok(code) => format!("answers {code}"),
            Err(error) => format!("does not answer ({error})"),
        };
        if tokio::time::Instant::now() >= deadline {
            let message = format!(
                "the kubelet's health check on {address} {problem} after {} s: see journalctl -u kubelet",
                KUBELET_PATIENCE.as_secs()
            );
            return Err(Failure::new(Reason::ServiceFailed, message));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The port of the kubelet's health check; none if it is switched off.
fn health_port(config: &str) -> Option<u16> {
    let line = config.lines().find_map(|line| line.strip_prefix("healthzPort:"));
    match line.map(|text| text.trim().parse()) {
        Some(Ok(0)) => None,
        Some(Ok(port)) => Some(port),
        _ => Some(KUBELET_PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake::FakeHost,
        observe::Service,
        software::{Observed, name_of},
    };

    #[test]
    fn the_kubelets_port() {
        assert_eq!(health_port("a: 1\n"), Some(KUBELET_PORT));
        assert_eq!(health_port("healthzPort: 7\n"), Some(7));
        assert_eq!(health_port("healthzPort: 0\n"), None);
    }

    #[tokio::test]
    async fn a_failed_service_or_a_missing_kubelet_is_told() {
        let fake = FakeHost::silent();
        fake.write(KUBELET_CONFIG, "healthzPort: 0\n");
        let mut seen = HostState::default();
        for one in software::ALL {
            let version = Some("1".parse().unwrap());
            seen.software.push((name_of(*one).unwrap(), Observed::now(version)));
        }
        let up = Service { state: ServiceState::Active, old_program: false };
        for unit in ["containerd.service", "keepalived.service"] {
            seen.facts.services.insert(unit.into(), up);
        }
        // A kubelet without a cluster does not run, and that is fine.
        verify(&fake.host, &seen).await.unwrap();
        seen.facts.joined = true;
        let error = verify(&fake.host, &seen).await.unwrap_err();
        assert!(error.message.starts_with("kubelet.service does not run"), "{error}");
        seen.facts.services.insert("kubelet.service".into(), up);
        verify(&fake.host, &seen).await.unwrap();
        let failed = Service { state: ServiceState::Failed, old_program: false };
        seen.facts.services.insert("keepalived.service".into(), failed);
        assert_eq!(verify(&fake.host, &seen).await.unwrap_err().reason, Reason::ServiceFailed);
    }
}
