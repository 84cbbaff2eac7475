//! What lets hosts in: tokens and keys that live for minutes and are removed after use.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use secrecy::{ExposeSecret, SecretString};

use super::error::{Attempt, Error};
use crate::{bootstrap::kubeadm::TOKEN_DESCRIPTION, random};

const NAMESPACE: &str = "kube-system";

/// What kind of Secret a token is.
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";

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
            type_: Some(TOKEN_TYPE.to_owned()),
            string_data: Some(data),
            ..Secret::default()
        };
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        api.create(&PostParams::default(), &object).await.to("make a bootstrap token")?;
        Ok(Self { secret: name, text })
    }

    /// Removes it.
    async fn delete(self, client: &kube::Client) -> Result<(), Error> {
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
    async fn delete(self, client: &kube::Client) -> Result<(), Error> {
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let owner = match api.get_opt(CERTIFICATES).await.to("look for laid down certificates")? {
            Some(secret) => secret.owner_references().first().map(|owner| owner.name.clone()),
            None => return Ok(()),
        };
        let certificates = delete(client, CERTIFICATES).await;
        match owner {
            Some(name) if name.starts_with("bootstrap-token-") => {
                certificates.and(delete(client, &name).await)
            }
            _ => certificates,
        }
    }
}

/// Removes what let a host in: each part, also if another one cannot be removed.
pub async fn withdraw(client: &kube::Client, token: Token, key: Option<CertificateKey>) -> Result<(), Error> {
    let certificates = match key {
        Some(key) => key.delete(client).await,
        None => Ok(()),
    };
    certificates.and(token.delete(client).await)
}

/// Removes tokens of infrop that a run left which was killed; for times when no host joins. Those of others stay, and so do
/// certificates: nobody has their key any more, and kubeadm has them end with a token of its own.
pub async fn remove_leftovers(client: &kube::Client) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let tokens = ListParams::default().fields(&format!("type={TOKEN_TYPE}"));
    for secret in api.list(&tokens).await.to("list the bootstrap tokens")? {
        let description = secret.data.as_ref().and_then(|data| data.get("description"));
        if description.is_some_and(|text| text.0 == TOKEN_DESCRIPTION.as_bytes()) {
            delete(client, &secret.name_any()).await?;
        }
    }
    Ok(())
}

async fn delete(client: &kube::Client, name: &str) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("remove the Secret {name}")).map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::TcpListener,
    };

    use super::*;

    /// An API that answers by method and path, and what it was asked to delete.
    async fn api(
        answer: impl Fn(&str, &str) -> (u16, serde_json::Value) + Send + 'static,
    ) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&deleted);
        tokio::spawn(async move {
            loop {
                let mut stream = BufReader::new(listener.accept().await.unwrap().0);
                let mut lines = Vec::new();
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    lines.push(line);
                }
                let mut words = lines[0].split_whitespace();
                let (method, path) = (words.next().unwrap(), words.next().unwrap());
                let (code, body) = answer(method, path);
                if method == "DELETE" {
                    let name = path.split(['?', '/']).rfind(|part| !part.is_empty()).unwrap();
                    log.lock().unwrap().push(name.to_owned());
                }
                let body = body.to_string();
                let head =
                    format!("HTTP/1.1 {code} X\r\nConnection: close\r\nContent-Length: {}", body.len());
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
        });
        let config = kube::Config::new(url.parse().unwrap());
        let _ = rustls::crypto::ring::default_provider().install_default();
        (kube::Client::try_from(config).unwrap(), deleted)
    }

    fn secret(name: &str, description: &str) -> serde_json::Value {
        use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
        let owner = json!({ "apiVersion": "v1", "kind": "Secret", "name": "bootstrap-token-c", "uid": "u" });
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "ownerReferences": [owner] },
            "data": { "description": BASE64.encode(description) },
        })
    }

    #[tokio::test]
    async fn a_token_goes_also_if_the_certificates_do_not() {
        for broken in ["", "kubeadm-certs", "bootstrap-token-c", "bootstrap-token-t"] {
            let (client, deleted) = api(move |method, path| {
                if method == "DELETE" && !broken.is_empty() && path.contains(broken) {
                    let status =
                        json!({ "kind": "Status", "code": 403, "status": "Failure", "message": "no" });
                    return (403, status);
                }
                (200, secret("kubeadm-certs", ""))
            })
            .await;
            let token = Token { secret: "bootstrap-token-t".into(), text: "t".into() };
            let withdrawn = withdraw(&client, token, Some(CertificateKey::new().unwrap())).await;
            assert_eq!(withdrawn.is_err(), !broken.is_empty(), "{broken}: {withdrawn:?}");
            let asked = deleted.lock().unwrap().clone();
            assert_eq!(asked, ["kubeadm-certs", "bootstrap-token-c", "bootstrap-token-t"], "{broken}");
        }
    }

    #[tokio::test]
    async fn what_a_killed_run_left_goes_and_nothing_else() {
        let (client, deleted) = api(|method, _| {
            if method == "DELETE" {
                return (
                    200,
                    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
                );
            }
            let items = [("a", "infrop"), ("b", "made by hand"), ("c", ""), ("d", "infrop")];
            let items = items.map(|(id, text)| secret(&format!("bootstrap-token-{id}"), text));
            (200, json!({ "apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": items }))
        })
        .await;
        remove_leftovers(&client).await.unwrap();
        assert_eq!(deleted.lock().unwrap().clone(), ["bootstrap-token-a", "bootstrap-token-d"]);
    }
}
