//! What hosts are given, by role.

use super::*;
use crate::{
    apply::observe::observe_in,
    bootstrap::host::{HostReport, KubeadmState},
    desired::{self, Provider as Wanted},
    provider::{
        Compute, Ownership, Power,
        static_computes::{Reach, StaticComputes},
    },
};

pub(in crate::apply) const DOCUMENT: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: site }
providers:
  rack:
    static:
      pools:
        control:
        - { name: c1, address: 192.0.2.11, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA] }
        - { name: c2, address: 192.0.2.12, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAB] }
        worker:
        - { name: w1, address: 192.0.2.21, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAD] }
cluster:
  controlPlane: { provider: rack, pool: control, nodes: 1 }
  workers: [{ provider: rack, pool: worker, nodes: 1 }]
  endpoint: { host: 192.0.2.10 }
software:
  kubernetes: 1.37.1
  versions: { haproxy: 2.6.12-1, keepalived: 1:2.2.7-1+b2 }
  repositories: [{ name: site, uri: 'https://packages.example', suite: ./, keyFile: /etc/site.asc }]
";

pub(in crate::apply) async fn context(text: &str) -> Context {
    let infrastructure = desired::parse(text, Path::new("x.yaml")).unwrap();
    let connections = Arc::new(Connections::new().unwrap());
    let name: ProviderName = "rack".parse().unwrap();
    let Wanted::Static(wanted) = &infrastructure.providers[&name] else { panic!("not static") };
    let reach = Reach {
        ssh: infrastructure.ssh.clone(),
        key: None,
        known_hosts: None,
        record: false,
        directory: tempfile::tempdir().unwrap(),
    };
    let owner = infrastructure.metadata.name.clone();
    let computes = StaticComputes::new(
        name.clone(),
        owner,
        wanted,
        reach,
        Arc::clone(&connections),
        &infrastructure.software,
    );
    let providers = BTreeMap::from([(name, Box::new(computes.await.unwrap()) as Box<dyn Provider>)]);
    let package = tempfile::NamedTempFile::new().unwrap();
    let package = AgentPackage::read(package.path(), Some("0.1.0".parse().unwrap())).unwrap();
    Context::new(infrastructure, Path::new(""), providers, connections, package).unwrap()
}

pub(in crate::apply) fn host(name: &str, group: usize, address: &str, interface: &str) -> Host {
    let report = HostReport {
        boot_id: "b".into(),
        owner: None,
        agent_package: None,
        delivered: None,
        initialized: None,
        agent: None,
        kubeadm: KubeadmState::None,
        joined: false,
        control_plane: false,
        interfaces: [(interface.parse().unwrap(), "eth7".to_owned())].into(),
    };
    let compute = Compute {
        name: name.parse().unwrap(),
        pool: "p".parse().unwrap(),
        address: address.parse().unwrap(),
        ownership: Ownership::Ours,
        power: Power::On,
    };
    Host { compute, group, report: Some(Ok(report)), wanted: None }
}

fn snapshot(context: &Context) -> Snapshot {
    Snapshot { groups: context.groups(&[]), ..Snapshot::default() }
}

fn metadata(context: &Context, host: &Host) -> anyhow::Result<Option<Metadata>> {
    let snapshot = snapshot(context);
    let group = &snapshot.groups[host.group];
    let defaults = context.provider(&group.provider).unwrap().defaults();
    context.host_metadata(&snapshot, host, group, defaults)
}

fn names(metadata: &Metadata) -> Vec<&str> {
    metadata.software.keys().map(common::software::SoftwareName::as_str).collect()
}

#[tokio::test]
async fn control_planes_carry_the_endpoint_and_workers_have_nothing_of_it() {
    let context = context(DOCUMENT).await;
    let plane = host("c1", 0, "192.0.2.11", "192.0.2.11");
    let given = metadata(&context, &plane).unwrap().unwrap();
    assert_eq!(names(&given), ["haproxy", "keepalived", "kubeadm", "kubectl", "kubelet"]);
    let haproxy = given.configuration.haproxy_config.unwrap();
    // All of the pool, also the spare.
    assert!(haproxy.contains("192.0.2.11:6444 ") && haproxy.contains("192.0.2.12:6444 "), "{haproxy}");
    assert!(given.configuration.keepalived_config.unwrap().contains("interface eth7\n"));
    let api_server = serde_json::to_value(context.api_server(&plane)).unwrap();
    assert_eq!(api_server["bindPort"], 6444);
    assert_eq!(context.endpoint(plane.compute.address), "192.0.2.10:6443");

    let given = metadata(&context, &host("w1", 1, "192.0.2.21", "192.0.2.21")).unwrap().unwrap();
    assert_eq!(names(&given), ["kubeadm", "kubectl", "kubelet"]);
    assert!(given.configuration.haproxy_config.is_none() && given.configuration.keepalived_config.is_none());
}

#[test]
fn a_worker_is_spared_the_images_of_control_planes() {
    let image = |name: &str| metadata::ImageArchive {
        name: name.parse().unwrap(),
        file: "/images/x.tar".into(),
        sha256: "0".repeat(64).parse().unwrap(),
    };
    let all = Configuration {
        images: Some(vec![image("example.com/etcd:3.7.0-0"), image("example.com/kube-proxy:v1.37.1")]),
        ..Configuration::default()
    };
    assert_eq!(of_role(&all, Role::ControlPlane), all);
    assert_eq!(of_role(&all, Role::Worker).images.unwrap(), [image("example.com/kube-proxy:v1.37.1")]);
}

#[tokio::test]
async fn without_its_address_on_an_interface_a_host_cannot_carry_it() {
    let context = context(DOCUMENT).await;
    let error = metadata(&context, &host("c1", 0, "192.0.2.11", "10.0.0.3")).unwrap_err();
    assert!(error.to_string().contains("none of its interfaces has 192.0.2.11"), "{error}");
    let mut silent = host("c1", 0, "192.0.2.11", "192.0.2.11");
    silent.report = None;
    assert!(metadata(&context, &silent).unwrap().is_none());
}

#[tokio::test]
async fn an_external_endpoint_is_nobodys_burden() {
    let context = context(&DOCUMENT.replace("192.0.2.10 }", "'2001:db8::1', external: true }")).await;
    let plane = host("c1", 0, "192.0.2.11", "10.0.0.3");
    let given = metadata(&context, &plane).unwrap().unwrap();
    assert!(given.configuration.haproxy_config.is_none() && given.configuration.keepalived_config.is_none());
    let api_server = serde_json::to_value(context.api_server(&plane)).unwrap();
    assert_eq!(api_server["bindPort"], 6443);
    assert_eq!(context.endpoint(plane.compute.address), "[2001:db8::1]:6443");
}

#[tokio::test]
async fn the_agents_version_is_known_to_whoever_decides() {
    let context = context(DOCUMENT).await;
    let (snapshot, _) = observe_in(&context, &[], 1).await;
    assert_eq!(snapshot.agent_version.unwrap().to_string(), "0.1.0");
}
