//! Restarting the host through logind, which lets the kubelet and others finish first.

use common::state::Reason;
use program::Program;
use serde::Deserialize;

use crate::{failure::Failure, host::Host};

fn logind() -> Program {
    Program::new("busctl").args([
        "--json=short",
        "call",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
    ])
}

/// Who keeps the host from restarting, and why; none if nobody does.
pub async fn inhibited(host: &Host) -> Result<Option<String>, Failure> {
    let text = host.insist(Reason::RebootFailed, logind().arg("ListInhibitors")).await?;
    parse(&text).map_err(|error| Failure::of(Reason::RebootFailed, &error))
}

fn parse(text: &str) -> Result<Option<String>, serde_json::Error> {
    /// What, who, why, mode, user, process.
    type Entry = (String, String, String, String, u32, u32);
    #[derive(Deserialize)]
    struct Answer {
        data: (Vec<Entry>,),
    }
    let Answer { data: (entries,) } = serde_json::from_str(text)?;
    Ok(entries
        .into_iter()
        .find(|(what, _, _, mode, ..)| mode == "block" && what.split(':').any(|what| what == "shutdown"))
        .map(|(_, who, why, ..)| format!("{who}: {why}")))
}

/// Orders the restart.
pub async fn order(host: &Host) -> Result<(), Failure> {
    // Not interactive: there is nobody to ask.
    host.insist(Reason::RebootFailed, logind().args(["Reboot", "b", "false"])).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_a_shutdown_count() {
        let text = |entry: &str| format!(r#"{{"type":"a(ssssuu)","data":[[{entry}]]}}"#);
        let blocked = r#"["sleep:shutdown","backup","a backup runs","block",0,7]"#;
        assert_eq!(parse(&text(blocked)).unwrap().unwrap(), "backup: a backup runs");
        for entry in ["", r#"["shutdown","kubelet","x","delay",0,7]"#, r#"["sleep","x","x","block",0,7]"#] {
            assert_eq!(parse(&text(entry)).unwrap(), None);
        }
    }
}
