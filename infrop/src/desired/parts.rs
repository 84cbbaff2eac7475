//! The document as far as it can be read: what is wrong in one place must not hide what is wrong in another.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    formats,
    model::{Endpoint, Networking, Ssh, StaticHost},
    names::{Count, PoolName, ProviderName},
    problem::Field,
};

/// A part of the document.
#[derive(Debug)]
pub(super) enum Part<T> {
    /// It is not written.
    Missing,
    /// It is written, but something in it is wrong and reported already.
    Unreadable,
    /// It is there.
    There(T),
}

/// The parts that are judged together.
#[derive(Debug)]
pub(super) struct Parts<'v> {
    document: &'v Value,
    pub providers: Vec<ProviderPart>,
    /// The control plane first.
    pub groups: Vec<Group>,
    pub endpoint: Part<Endpoint>,
    pub networking: Option<Networking>,
    /// With its defaults if it is not written.
    pub ssh: Option<Ssh>,
}

/// A provider, as far as it can be read.
#[derive(Debug)]
pub(super) struct ProviderPart {
    pub name: String,
    pub kind: ProviderKind,
    pub pools: Vec<PoolPart>,
}

/// Which provider it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderKind {
    Lab,
    Static,
    Unreadable,
}

/// A pool, as far as it can be read.
#[derive(Debug)]
pub(super) struct PoolPart {
    pub name: String,
    pub field: Field,
    /// How many hosts are written; none for pools that make theirs.
    pub size: Option<usize>,
    /// Those that can be read.
    pub hosts: Vec<(Field, StaticHost)>,
}

/// A group of nodes, as far as it can be read.
#[derive(Debug)]
pub(super) struct Group {
    pub field: Field,
    pub is_control_plane: bool,
    pub provider: Option<ProviderName>,
    pub pool: Option<PoolName>,
    pub nodes: Option<u16>,
}

impl<T> Part<T> {
    pub fn there(&self) -> Option<&T> {
        match self {
            Self::There(part) => Some(part),
            Self::Missing | Self::Unreadable => None,
        }
    }
}

fn read<T: DeserializeOwned>(value: Option<&Value>) -> Option<T> {
    value.and_then(|value| T::deserialize(value).ok())
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

impl<'v> Parts<'v> {
    pub fn new(document: &'v Value) -> Self {
        let cluster = document.get("cluster");
        let in_cluster = |name: &str| cluster.and_then(|cluster| cluster.get(name));
        let groups =
            in_cluster("controlPlane")
                .map(|value| group(value, Field::of(&["cluster", "controlPlane"]), true))
                .into_iter()
                .chain(items(in_cluster("workers")).enumerate().map(|(index, value)| {
                    group(value, Field::of(&["cluster", "workers"]).item(index), false)
                }))
                .collect();
        let endpoint = match in_cluster("endpoint") {
            None | Some(Value::Null) => Part::Missing,
            value => match read::<Endpoint>(value) {
                Some(endpoint) if formats::is("host", &endpoint.host) => Part::There(endpoint),
                _ => Part::Unreadable,
            },
        };
        // A part that is not written has its defaults; one that cannot be read has none.
        let empty = Value::Object(serde_json::Map::new());
        let networking = read(in_cluster("networking").or(Some(&empty)));
        let ssh = read(document.get("ssh").or(Some(&empty)));
        let providers =
            entries(document.get("providers")).map(|(name, value)| provider(name, value)).collect();
        Self { document, providers, groups, endpoint, networking, ssh }
    }

    /// The value of a field.
    pub fn value(&self, pointer: &str) -> Option<&'v Value> {
        self.document.pointer(pointer)
    }

    /// The fields of a map and their values.
    pub fn entries(&self, pointer: &str) -> impl Iterator<Item = (&'v String, &'v Value)> + use<'v> {
        entries(self.value(pointer))
    }

    /// The value of a field, typed; none if it is not there or wrong.
    pub fn read<T: DeserializeOwned>(&self, pointer: &str) -> Option<T> {
        read(self.value(pointer))
    }

    /// The items of a list that can be read, with their fields.
    pub fn list<T: DeserializeOwned>(&self, field: &Field) -> Vec<(Field, T)> {
        items(self.document.pointer(&field.pointer()))
            .enumerate()
            .filter_map(|(index, item)| Some((field.item(index), read(Some(item))?)))
            .collect()
    }

    /// The provider of that name.
    pub fn provider(&self, name: &ProviderName) -> Option<&ProviderPart> {
        self.providers.iter().find(|provider| provider.name == name.as_str())
    }

    /// The provider of a group, if it is one that is written.
    pub fn provider_of(&self, group: &Group) -> Option<&ProviderPart> {
        group.provider.as_ref().and_then(|name| self.provider(name))
    }

    /// The pool of a group, if it is one that is written.
    pub fn pool_of(&self, group: &Group) -> Option<&PoolPart> {
        let name = group.pool.as_ref()?;
        self.provider_of(group)?.pools.iter().find(|pool| pool.name == name.as_str())
    }

    /// All hosts of static providers.
    pub fn hosts(&self) -> impl Iterator<Item = &(Field, StaticHost)> {
        self.providers.iter().flat_map(|provider| &provider.pools).flat_map(|pool| &pool.hosts)
    }

    /// Whether a group has its hosts from such a provider.
    pub fn uses(&self, kind: ProviderKind) -> bool {
        self.groups.iter().filter_map(|group| self.provider_of(group)).any(|provider| provider.kind == kind)
    }
}

fn provider(name: &str, value: &Value) -> ProviderPart {
    let (kind, key) = if value.get("lab").is_some() {
        (ProviderKind::Lab, "lab")
    } else if value.get("static").is_some() {
        (ProviderKind::Static, "static")
    } else {
        (ProviderKind::Unreadable, "")
    };
    let field = Field::of(&["providers", name, key, "pools"]);
    let pools = value.get(key).and_then(|provider| provider.get("pools"));
    let pools = entries(pools).map(|(name, hosts)| pool(name, hosts, field.key(name))).collect();
    ProviderPart { name: name.to_owned(), kind, pools }
}

fn pool(name: &str, value: &Value, field: Field) -> PoolPart {
    let hosts = items(Some(value))
        .enumerate()
        .filter_map(|(index, host)| Some((field.item(index), read(Some(host))?)))
        .collect();
    PoolPart { name: name.to_owned(), size: value.as_array().map(Vec::len), hosts, field }
}

fn group(value: &Value, field: Field, is_control_plane: bool) -> Group {
    Group {
        field,
        is_control_plane,
        provider: read(value.get("provider")),
        pool: read(value.get("pool")),
        nodes: read(value.get("nodes")).map(|Count(nodes)| nodes),
    }
}
