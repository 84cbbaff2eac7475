//! Objects from files, applied once and again only when the file changed.

use std::path::Path;

use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::Scope,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::error::{Attempt, Error};

/// Whose fields these are.
const MANAGER: &str = "infrop";

/// The hash of what was applied. Comparing it costs a read; a dry run would be a write.
const CONTENT: &str = "infrop.caos.ch/content";

/// An object of a file.
#[derive(Debug, Clone)]
pub struct Object {
    value: DynamicObject,
    kind: GroupVersionKind,
    hash: String,
    file: String,
}

/// The objects of all files, in their order.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    objects: Vec<Object>,
}

impl Manifests {
    /// Adds the objects of a YAML text.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), Error> {
        let wrong = |why: String| Error::Manifest { file: file.to_owned(), why };
        for document in serde_yaml::Deserializer::from_str(text) {
            let value = serde_json::Value::deserialize(document).map_err(|error| wrong(error.to_string()))?;
            if value.is_null() {
                continue;
            }
            let hash = Sha256::digest(value.to_string().as_bytes());
            let hash = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            let value: DynamicObject =
                serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            let types = value.types.as_ref().ok_or_else(|| wrong("an object has no kind".to_owned()))?;
            let kind = GroupVersionKind::try_from(types).map_err(|error| wrong(error.to_string()))?;
            if value.metadata.name.is_none() {
                return Err(wrong(format!("a {} has no name", kind.kind)));
            }
            self.objects.push(Object { value, kind, hash, file: file.to_owned() });
        }
        Ok(())
    }

    /// Adds the objects of a file.
    pub fn read(&mut self, path: &Path) -> Result<(), Error> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::Manifest { file: file.clone(), why: error.to_string() })?;
        self.add(&file, &text)
    }

    /// Those that the cluster does not have in this form.
    pub async fn pending(&self, client: &kube::Client) -> Result<Vec<Object>, Error> {
        let mut pending = Vec::new();
        let looks = self.objects.iter().map(|object| async {
            let Some(api) = find_api(client, object).await? else { return Ok(true) };
            let name = object.value.name_any();
            let seen = api.get_metadata_opt(&name).await.to(format!("read {} {name}", object.kind.kind))?;
            let hash = seen.as_ref().and_then(|seen| seen.annotations().get(CONTENT));
            Ok::<_, Error>(hash != Some(&object.hash))
        });
        for (object, missing) in self.objects.iter().zip(futures::future::join_all(looks).await) {
            if missing? {
                pending.push(object.clone());
            }
        }
        Ok(pending)
    }
}

impl Object {
    /// What it is, for people.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.kind, self.value.name_any())
    }

    /// Creates it or brings it to this form.
    pub async fn apply(&self, client: &kube::Client) -> Result<(), Error> {
        let Some(api) = find_api(client, self).await? else {
            let why = format!("the cluster does not know {} of {}", self.kind.kind, self.kind.api_version());
            return Err(Error::Manifest { file: self.file.clone(), why });
        };
        let mut value = self.value.clone();
        value.annotations_mut().insert(CONTENT.to_owned(), self.hash.clone());
        // What a person changed in the fields of the file is changed back; other fields stay theirs.
        let parameters = PatchParams::apply(MANAGER).force();
        api.patch(&value.name_any(), &parameters, &Patch::Apply(&value))
            .await
            .to(format!("apply {}", self.title()))?;
        Ok(())
    }
}

/// Where objects of that kind are; none if the cluster does not know the kind.
async fn find_api(client: &kube::Client, object: &Object) -> Result<Option<Api<DynamicObject>>, Error> {
    let found = kube::discovery::pinned_kind(client, &object.kind).await;
    let (resource, capabilities) = match found {
        Err(kube::Error::Discovery(_)) => return Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        found => found.to(format!("ask what {} is", object.kind.kind))?,
    };
    let client = client.clone();
    Ok(Some(match (capabilities.scope, object.value.namespace()) {
        (Scope::Cluster, _) => Api::all_with(client, &resource),
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client, &namespace, &resource),
        (Scope::Namespaced, None) => Api::default_namespaced_with(client, &resource),
    }))
}
