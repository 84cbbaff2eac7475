//! The document as a whole: rules with their places, the schema, the examples, and texts that are no documents.

mod form;
mod robustness;
mod rules;
mod schema;

use std::path::Path;

use super::{Infrastructure, Problems, parse};

/// A document that is right; tests change a word of it.
const GOOD: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata:
  name: site
providers:
  rack:
    static:
      pools:
        control:
        - { name: c1, address: 192.0.2.11, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA] }
        - { name: c2, address: 192.0.2.12, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAB] }
        - { name: c3, address: 192.0.2.13, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAC] }
        worker:
        - { name: w1, address: 192.0.2.21, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAD] }
        - { name: w2, address: 192.0.2.22, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAE] }
  here:
    lab:
      pools:
        spare: {}
cluster:
  controlPlane:
    provider: rack
    pool: control
    nodes: 3
    labels: { example.org/rack: a }
  workers:
  - provider: rack
    pool: worker
    nodes: 2
    taints: [{ key: example.org/x, value: y, effect: NoSchedule }]
  endpoint:
    host: 192.0.2.10
    port: 6443
  networking:
    podSubnet: 10.244.0.0/16
    serviceSubnet: 10.96.0.0/12
    dnsDomain: cluster.local
    manifests: [lab-network.yaml]
  kubelet: { maxPods: 50 }
  certificateNames: [api.example.org]
software:
  kubernetes: 1.37.1
  versions: { containerd: 2.4.2, haproxy: 2.6.12-1, keepalived: 1:2.2.7-1+b2 }
  repositories:
  - { name: site, uri: 'https://packages.example', suite: ./, keyFile: /etc/site.asc }
  bundle: /opt/infrop/bundles/{kubernetes}
  configuration:
    sysctl: { vm.max_map_count: '262144' }
ssh:
  user: debian
  port: 22
  privateKey: { environment: INFROP_SSH_KEY }
rollout:
  maxUnavailable: 1
  checks:
  - { name: smoke, command: [./smoke.sh, --fast], timeoutSeconds: 30 }
  - { name: disk, job: smoke-job.yaml }
";

/// Names of files begin at the examples' directory.
fn read(text: &str) -> Result<Infrastructure, Problems> {
    parse(text, &Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/x.yaml"))
}

/// `line:column: field: problem` of all problems.
fn problems(text: &str) -> Vec<String> {
    let Err(Problems(problems)) = read(text) else { return Vec::new() };
    assert!(problems.iter().all(|problem| !problem.hint.is_empty()), "{problems:?}");
    problems
        .iter()
        .map(|problem| {
            let text = problem.to_string();
            let (_, text) = text.split_once("x.yaml:").unwrap();
            text.lines().next().unwrap().to_owned()
        })
        .collect()
}

/// Puts `to` where `from` stands in the good document and expects these problems.
fn expect(cases: &[(&str, &str, &str)]) {
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from), "{from}");
        let problems = problems(&GOOD.replacen(from, to, 1)).join("\n");
        assert_eq!(problems, *expected, "{from} -> {to}");
    }
}
