//! What lets hosts in: tokens and keys that live for minutes and are removed after use.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use secrecy::{ExposeSecret, SecretString};

use super::error::{Attempt, Error};
use crate::{bootstrap::kubeadm::TOKEN_DESCRIPTION, random};

const NAMESPACE: &str = "kube-system";

/// Long enough for a join on a slow host; afterwards the cluster removes it by itself, should infrop not come to it.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// Where kubeadm lays certificates down, encrypted.
const CERTIFICATES: &str = "kubeadm-certs";

/// A bootstrap token in the cluster.
#[derive(Debug)]
pub struct Token {
    secret: String,
    /// `id.secret`.
    text: SecretString,
}

/// A token that no cluster knows yet.
fn random_token() -> Result<(String, String), Error> {
    Ok((random::hex(3)?, random::hex(8)?))
}

impl Token {
    /// A token's text for `kubeadm init`, which makes one in any case.
    pub fn throwaway() -> Result<String, Error> {
        let (id, secret) = random_token()?;
        Ok(format!("{id}.{secret}"))
    }

    /// Makes one.
    pub async fn create(client: &kube::Client) -> Result<Self, Error> {
        let (id, secret) = random_token()?;
        let name = format!("bootstrap-token-{id}");
        let text = SecretString::from(format!("{id}.{secret}"));
        let data = BTreeMap::from(
            [
                ("token-id", id),
                ("token-secret", secret),
                ("description", TOKEN_DESCRIPTION.to_owned()),
                ("expiration", (Timestamp::now() + LIFETIME).to_string()),
                ("usage-bootstrap-authentication", "true".to_owned()),
                ("usage-bootstrap-signing", "true".to_owned()),
                ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token".to_owned()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        let object = Secret {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            type_: Some("bootstrap.kubernetes.io/token".to_owned()),
            string_data: Some(data),
            ..Secret::default()
        };
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        api.create(&PostParams::default(), &object).await.to("make a bootstrap token")?;
        Ok(Self { secret: name, text })
    }

    /// Removes it.
    pub async fn delete(self, client: &kube::Client) -> Result<(), Error> {
        delete(client, &self.secret).await
    }

    /// The token, to be shown to a host.
    pub fn expose(&self) -> String {
        self.text.expose_secret().to_owned()
    }
}

/// A key that certificates of the cluster are encrypted with on their way to another control plane.
#[derive(Debug)]
pub struct CertificateKey(SecretString);

impl CertificateKey {
    /// A new one.
    pub fn new() -> Result<Self, Error> {
        Ok(Self(random::hex(32)?.into()))
    }

    /// The key, to be shown to control planes.
    pub fn expose(&self) -> String {
        self.0.expose_secret().to_owned()
    }

    /// Removes what was encrypted with it, and the token that kubeadm made for its removal.
    pub async fn delete(self, client: &kube::Client) -> Result<(), Error> {
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let owner = match api.get_opt(CERTIFICATES).await.to("look for laid down certificates")? {
            Some(secret) => secret.owner_references().first().map(|owner| owner.name.clone()),
            None => return Ok(()),
        };
        delete(client, CERTIFICATES).await?;
        match owner {
            Some(name) if name.starts_with("bootstrap-token-") => delete(client, &name).await,
            _ => Ok(()),
        }
    }
}

async fn delete(client: &kube::Client, name: &str) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("remove the Secret {name}")).map(|_| ()),
    }
}
