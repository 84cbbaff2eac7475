//! Software, its versions and its sources.

use std::collections::BTreeMap;

use common::{
    KubernetesVersion,
    catalogue::{self, Source},
    metadata::{Key, Repository, Template},
};

use crate::{
    bootstrap::endpoint,
    desired::{
        parts::{Part, Parts, ProviderKind},
        problem::{Field, Finding, Spot},
        similar,
    },
};

/// Fields of a component's configuration that say what it is: infrop writes them.
const HEAD: [&str; 2] = ["apiVersion", "kind"];

/// kubeadm of this minor was the first to read the form of configuration that infrop writes (v1beta4).
const OLDEST_MINOR: u64 = 31;

fn field(name: &str) -> Field {
    Field::of(&["software", name])
}

/// The version as such.
pub(super) fn kubernetes(parts: &Parts) -> Vec<Finding> {
    let version = parts.read::<KubernetesVersion>("/software/kubernetes");
    let Some(version) = version.filter(|version| version.minor() < OLDEST_MINOR) else { return Vec::new() };
    let problem = format!("{version} is older than 1.{OLDEST_MINOR}, the first that infrop can set up");
    vec![Finding::new(
        field("kubernetes"),
        problem,
        "write a version that Kubernetes still supports, such as 1.37.1",
    )]
}

/// The versions on the way go up to that of `kubernetes`, one minor version at a time. From where, only the cluster knows.
pub(super) fn kubernetes_steps(parts: &Parts) -> Vec<Finding> {
    let list = Field::of(&["rollout", "kubernetesSteps"]);
    let steps = parts.list::<KubernetesVersion>(&list);
    let written = parts.value(&list.pointer()).and_then(serde_json::Value::as_array).map_or(0, Vec::len);
    let target = parts.read::<KubernetesVersion>("/software/kubernetes");
    let mut findings = Vec::new();
    if let Some(target) = &target {
        for (field, step) in steps.iter().filter(|(_, step)| step > target) {
            let problem = format!("{step} is above {target}, which software.kubernetes says");
            let hint = "remove it, or write a newer version into software.kubernetes";
            findings.push(Finding::new(field.clone(), problem, hint));
        }
    }
    // One that cannot be read is reported already, and may be the one that is missing here.
    if steps.len() < written || !findings.is_empty() {
        return findings;
    }
    let end = target.as_ref().map(|target| (&list, target));
    let all: Vec<(&Field, &KubernetesVersion)> =
        steps.iter().map(|(field, step)| (field, step)).chain(end).collect();
    for (index, ((field, from), (next, to))) in all.iter().zip(all.iter().skip(1)).enumerate() {
        let is_target = index + 1 == steps.len();
        let named = if is_target { "software.kubernetes says" } else { "comes next" };
        if to <= from && !is_target {
            let problem = format!("{to} comes after {from}, which is not older");
            findings.push(Finding::new(
                (*next).clone(),
                problem,
                "write the steps in the order in which they are taken",
            ));
        } else if to.minor() > from.minor() + 1 {
            let problem = format!("{to}, which {named}, is more than one minor version above {from}");
            let hint = format!("write a version of 1.{} after it", from.minor() + 1);
            findings.push(Finding::new((*field).clone(), problem, hint));
        }
    }
    findings
}

/// Versions that contradict `kubernetes`, or that node-agent would refuse.
pub(super) fn versions(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, _) in parts.entries("/software/versions") {
        let (problem, hint) = match catalogue::find(name).map(|entry| entry.source) {
            Some(Source::Named) => continue,
            Some(Source::Kubernetes) => {
                let problem = "has the version that software.kubernetes says, and no other".to_owned();
                (problem, "remove it; software.kubernetes speaks for kubeadm, kubelet and kubectl".to_owned())
            }
            Some(Source::Content) => {
                let problem = "has no version to be named: it is the hash of its content".to_owned();
                (problem, format!("write the content under software.configuration.{name}"))
            }
            None => {
                let named: Vec<String> = catalogue::names_of(Source::Named).into_iter().collect();
                let hint = match similar::among(name, named.iter().map(String::as_str)) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("there is {}", named.join(", ")),
                };
                ("is no software that node-agent knows".to_owned(), hint)
            }
        };
        findings.push(Finding::new(field("versions").key(name), problem, hint).at(Spot::Key));
    }
    findings
}

/// Hosts that are given have nothing by themselves that carries the endpoint, and no repository has just one version.
pub(super) fn endpoint(parts: &Parts) -> Vec<Finding> {
    let carried = parts.endpoint.there().is_some_and(|endpoint| !endpoint.external);
    let control_plane = parts.groups.first().filter(|group| group.is_control_plane);
    let provider = control_plane.and_then(|group| parts.provider_of(group));
    // One that cannot be read is reported already.
    let readable = parts.value("/software").is_some_and(serde_json::Value::is_object);
    if !carried || !readable || provider.is_none_or(|provider| provider.kind != ProviderKind::Static) {
        return Vec::new();
    }
    let is_named = |name: &str| parts.entries("/software/versions").any(|(named, _)| named == name);
    let missing: Vec<&str> = endpoint::SOFTWARE.into_iter().filter(|name| !is_named(name)).collect();
    let verb = match missing.len() {
        0 => return Vec::new(),
        1 => "carries",
        _ => "carry",
    };
    let problem = format!(
        "does not name {}, which {verb} cluster.endpoint from control plane to control plane",
        missing.join(" and ")
    );
    let hint = "write the Debian versions that `apt-cache madison haproxy keepalived` shows on a host, or \
                `external: true` into cluster.endpoint if something else carries it";
    vec![Finding::new(field("versions"), problem, hint)]
}

/// Hosts that are given have no packages and no images by themselves.
pub(super) fn source(parts: &Parts) -> Vec<Finding> {
    let Some(software) = parts.value("/software").filter(|software| software.is_object()) else {
        return Vec::new();
    };
    let has = |name: &str| {
        software.get(name).is_some_and(|value| !value.is_null() && *value != serde_json::json!([]))
    };
    let mut findings = Vec::new();
    if parts.uses(ProviderKind::Static) && !has("bundle") && !has("repositories") {
        let problem = "hosts of static providers have nowhere to get packages from";
        let hint =
            "write `bundle` (a directory on the hosts, made with `infrop bundle build`) or `repositories`";
        findings.push(Finding::new(Field::of(&["software"]), problem, hint).at(Spot::Key));
    }
    let bundle = parts.read::<Template>("/software/bundle");
    if let Some(bundle) = bundle.filter(|bundle| !bundle.as_str().starts_with('/')) {
        let problem = format!("{bundle} is not a path from / on the hosts");
        let hint = "write a directory such as /opt/infrop/bundles/{kubernetes}";
        findings.push(Finding::new(field("bundle"), problem, hint));
    }
    findings
}

/// Repositories beside each other, and keys that are keys.
pub(super) fn repositories(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = BTreeMap::new();
    for (field, repository) in parts.list::<Repository>(&field("repositories")) {
        let Repository { name, uri, suite: _, components: _, key } = repository;
        if !["https://", "http://", "file:/"].iter().any(|start| uri.as_str().starts_with(start)) {
            let hint = "begin with https://, http:// or file:/";
            findings.push(Finding::new(field.key("uri"), "is not an address of a repository", hint));
        }
        match key {
            Key::Key(text) if !text.trim_start().starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----") => {
                // Not repeated: it may be the private one.
                let hint = "write the public key as `gpg --armor --export` prints it";
                findings.push(Finding::new(field.key("key"), "is not an armoured public key", hint));
            }
            Key::KeyFile(file) if !file.as_str().starts_with('/') => {
                let problem = format!("{file} is not a path from / on the hosts");
                findings.push(Finding::new(field.key("keyFile"), problem, "begin with /"));
            }
            Key::Key(_) | Key::KeyFile(_) => {}
        }
        if let Some(first) = seen.get(&name) {
            let problem = format!("{name} is the name of {first} already");
            findings.push(Finding::new(field.key("name"), problem, "give each repository a name of its own"));
        } else {
            seen.insert(name, field);
        }
    }
    findings
}

/// Contents that infrop writes itself.
pub(super) fn configuration(parts: &Parts) -> Vec<Finding> {
    let endpoint = matches!(&parts.endpoint, Part::There(endpoint) if !endpoint.external);
    let mut findings = Vec::new();
    for (name, _) in parts.entries("/software/configuration").filter(|(_, value)| !value.is_null()) {
        let (problem, hint) = match name.as_str() {
            "hostname" => {
                ("is each host's own, so one for all cannot be right", "remove it: infrop names the hosts")
            }
            "haproxy-config" | "keepalived-config" if endpoint => (
                "is written by infrop, because the control planes carry cluster.endpoint",
                "remove it, or write `external: true` into cluster.endpoint and care for the address yourself",
            ),
            _ => continue,
        };
        findings.push(Finding::new(field("configuration").key(name), problem, hint).at(Spot::Key));
    }
    findings
}

/// The heads of kubeadm's component configurations.
pub(super) fn component_configuration(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for component in ["kubelet", "kubeProxy"] {
        for (name, _) in parts.entries(&format!("/cluster/{component}")) {
            if HEAD.contains(&name.as_str()) {
                let field = Field::of(&["cluster", component, name]);
                let hint = "remove it and write only the fields you want to be different";
                findings.push(Finding::new(field, "is written by infrop", hint).at(Spot::Key));
            }
        }
    }
    findings
}
