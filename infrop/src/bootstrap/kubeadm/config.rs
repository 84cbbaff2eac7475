//! kubeadm's configuration, v1beta4, as far as infrop writes it.

use std::net::IpAddr;

use common::metadata::NodeName;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::desired::Taint;

const API_VERSION: &str = "kubeadm.k8s.io/v1beta4";
const CRI_SOCKET: &str = "unix:///run/containerd/containerd.sock";

/// Where an API server listens on its own host, unless something else has that port there.
pub const API_PORT: u16 = 6443;

/// How a host registers itself.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRegistration {
    name: NodeName,
    cri_socket: &'static str,
    /// None leaves kubeadm's default: control planes keep workloads away.
    #[serde(skip_serializing_if = "Option::is_none")]
    taints: Option<Vec<Taint>>,
    kubelet_extra_args: Vec<Argument>,
    ignore_preflight_errors: Vec<String>,
}

/// An argument of a program.
#[derive(Debug, Clone, Serialize)]
struct Argument {
    name: &'static str,
    value: String,
}

impl NodeRegistration {
    /// Of the host with this name and address.
    pub fn new(name: NodeName, address: IpAddr, taints: Option<Vec<Taint>>, ignored: &[String]) -> Self {
        Self {
            name,
            cri_socket: CRI_SOCKET,
            taints,
            // A host may have several addresses; the document says which one is meant.
            kubelet_extra_args: vec![Argument { name: "node-ip", value: address.to_string() }],
            ignore_preflight_errors: ignored.to_vec(),
        }
    }
}

/// The address an API server tells others.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalEndpoint {
    advertise_address: IpAddr,
    bind_port: u16,
}

impl LocalEndpoint {
    /// On a host.
    pub fn new(address: IpAddr, port: u16) -> Self {
        Self { advertise_address: address, bind_port: port }
    }
}

/// A token that `kubeadm init` makes. It always makes one; this one is as good as gone.
#[derive(Debug, Clone, Serialize)]
pub struct InitialToken {
    token: String,
    ttl: &'static str,
    description: &'static str,
    usages: [&'static str; 2],
    groups: [&'static str; 1],
}

/// What tokens of infrop are described as, so that their removal hits no others.
pub const TOKEN_DESCRIPTION: &str = "infrop";

/// For `kubeadm init`: this host.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InitConfiguration {
    api_version: &'static str,
    kind: &'static str,
    bootstrap_tokens: Vec<InitialToken>,
    #[serde(rename = "localAPIEndpoint")]
    local_api_endpoint: LocalEndpoint,
    node_registration: NodeRegistration,
    /// With it certificates of the cluster are laid down for other control planes, encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_key: Option<String>,
}

impl InitConfiguration {
    /// For a host; `token` is used up at once.
    pub fn new(node_registration: NodeRegistration, api_server: LocalEndpoint, token: String) -> Self {
        let token = InitialToken {
            token,
            ttl: "1m0s",
            description: TOKEN_DESCRIPTION,
            usages: ["signing", "authentication"],
            groups: ["system:bootstrappers:kubeadm:default-node-token"],
        };
        Self {
            api_version: API_VERSION,
            kind: "InitConfiguration",
            bootstrap_tokens: vec![token],
            local_api_endpoint: api_server,
            node_registration,
            certificate_key: None,
        }
    }

    /// With a key for the cluster's certificates.
    #[must_use]
    pub fn with_certificate_key(mut self, key: String) -> Self {
        self.certificate_key = Some(key);
        self
    }
}

/// For `kubeadm init`: the cluster.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    api_version: &'static str,
    kind: &'static str,
    /// Shown in kubeconfig files.
    pub cluster_name: String,
    /// `v1.37.1`.
    pub kubernetes_version: String,
    /// `host:port`.
    pub control_plane_endpoint: String,
    /// Addresses.
    pub networking: Networking,
    /// The API server.
    pub api_server: ApiServer,
}

/// Addresses of pods and services.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// Of pods.
    pub pod_subnet: String,
    /// Of services.
    pub service_subnet: String,
    /// Of services' names.
    pub dns_domain: String,
}

/// How long an API server that is to stop goes on answering while it says that it is not ready: whoever leads calls to
/// several has left it by then. The endpoint that control planes carry needs two seconds.
const SHUTDOWN_DELAY: &str = "5s";

/// What the API server is to be.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServer {
    extra_args: Vec<Argument>,
    /// More names and addresses in its certificate.
    #[serde(rename = "certSANs")]
    pub certificate_names: Vec<String>,
}

impl ClusterConfiguration {
    /// Of a cluster.
    pub fn new(
        cluster_name: String,
        kubernetes_version: String,
        control_plane_endpoint: String,
        networking: Networking,
        certificate_names: Vec<String>,
    ) -> Self {
        Self {
            api_version: API_VERSION,
            kind: "ClusterConfiguration",
            cluster_name,
            kubernetes_version,
            control_plane_endpoint,
            networking,
            api_server: ApiServer {
                extra_args: vec![Argument {
                    name: "shutdown-delay-duration",
                    value: SHUTDOWN_DELAY.to_owned(),
                }],
                certificate_names,
            },
        }
    }
}

/// For `kubeadm join`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinConfiguration {
    api_version: &'static str,
    kind: &'static str,
    discovery: Discovery,
    node_registration: NodeRegistration,
    #[serde(skip_serializing_if = "Option::is_none")]
    control_plane: Option<JoinControlPlane>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    bootstrap_token: TokenDiscovery,
}

/// How a host finds the cluster and knows that it is the right one.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenDiscovery {
    /// Lets it in, once.
    pub token: String,
    /// `host:port`.
    pub api_server_endpoint: String,
    /// Hashes of the public keys that the cluster's certificates may be signed with.
    pub ca_cert_hashes: Vec<String>,
}

/// For another control plane.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinControlPlane {
    #[serde(rename = "localAPIEndpoint")]
    local_api_endpoint: LocalEndpoint,
    certificate_key: String,
}

impl JoinConfiguration {
    /// Of a worker.
    pub fn worker(discovery: TokenDiscovery, node_registration: NodeRegistration) -> Self {
        Self {
            api_version: API_VERSION,
            kind: "JoinConfiguration",
            discovery: Discovery { bootstrap_token: discovery },
            node_registration,
            control_plane: None,
        }
    }

    /// Of another control plane.
    #[must_use]
    pub fn as_control_plane(mut self, api_server: LocalEndpoint, certificate_key: String) -> Self {
        self.control_plane = Some(JoinControlPlane { local_api_endpoint: api_server, certificate_key });
        self
    }
}

/// A `KubeletConfiguration` or `KubeProxyConfiguration` of given fields; none if there are none.
pub fn component(api_version: &str, kind: &str, fields: &Map<String, Value>) -> Option<Value> {
    if fields.is_empty() {
        return None;
    }
    let mut document = fields.clone();
    document.insert("apiVersion".into(), api_version.into());
    document.insert("kind".into(), kind.into());
    Some(Value::Object(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> NodeRegistration {
        NodeRegistration::new(
            "cp-1".parse().unwrap(),
            "10.0.0.1".parse().unwrap(),
            None,
            &["Swap".to_owned()],
        )
    }

    #[test]
    fn documents_have_the_names_kubeadm_knows() {
        let api_server = LocalEndpoint::new("10.0.0.1".parse().unwrap(), 6444);
        let init = InitConfiguration::new(registration(), api_server, "a.b".into());
        let init = serde_json::to_value(init.with_certificate_key("k".into())).unwrap();
        assert_eq!(init["localAPIEndpoint"]["advertiseAddress"], "10.0.0.1");
        assert_eq!(init["localAPIEndpoint"]["bindPort"], 6444);
        assert_eq!(init["nodeRegistration"]["kubeletExtraArgs"][0]["name"], "node-ip");
        assert_eq!(init["bootstrapTokens"][0]["ttl"], "1m0s");
        assert_eq!(init["certificateKey"], "k");

        let discovery = TokenDiscovery {
            token: "a.b".into(),
            api_server_endpoint: "e:6443".into(),
            ca_cert_hashes: vec!["sha256:0".into()],
        };
        let worker = JoinConfiguration::worker(discovery, registration());
        assert!(serde_json::to_value(&worker).unwrap().get("controlPlane").is_none());
        let other =
            worker.as_control_plane(LocalEndpoint::new("10.0.0.2".parse().unwrap(), API_PORT), "k".into());
        let other = serde_json::to_value(other).unwrap();
        assert_eq!(other["controlPlane"]["localAPIEndpoint"]["bindPort"], 6443);
        assert_eq!(other["discovery"]["bootstrapToken"]["caCertHashes"][0], "sha256:0");
    }

    #[test]
    fn what_is_a_text_is_one_in_any_yaml() {
        let parts = ["off", "1e3"].map(|name| serde_json::json!({ "name": name, "lines": "a\n---\nb" }));
        let text = super::super::documents(parts);
        assert_eq!(
            text,
            "{\"lines\":\"a\\n---\\nb\",\"name\":\"off\"}\n---\n{\"lines\":\"a\\n---\\nb\",\"name\":\"1e3\"}\n"
        );
    }

    #[test]
    fn components_without_fields_are_left_out() {
        assert!(component("v", "K", &Map::new()).is_none());
        let fields = Map::from_iter([("a".to_owned(), 1.into())]);
        let document = component("v", "K", &fields).unwrap();
        assert_eq!(document["kind"], "K");
        assert_eq!(document["a"], 1);
    }
}
