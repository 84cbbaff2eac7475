//! The pages about commands say what is so.

use clap::CommandFactory;

use super::*;

const APPLY: &str = include_str!("../../../docs/usage/apply.md");
const CI: &str = include_str!("../../../docs/usage/ci.md");

/// The YAML blocks of a page.
fn blocks(page: &str) -> Vec<serde_yaml::Value> {
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```\n").next());
    blocks
        .map(|block| serde_yaml::from_str(block).unwrap_or_else(|error| panic!("{error}\n{block}")))
        .collect()
}

#[test]
fn examples_for_ci_can_be_read_and_do_what_the_page_says() {
    let blocks = blocks(CI);
    let [document, github, gitlab] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    assert!(document["ssh"]["privateKey"]["environment"].is_string());
    let apply = &github["jobs"]["apply"];
    assert_eq!(apply["concurrency"]["cancel-in-progress"], false);
    assert!(github["jobs"]["plan"]["steps"].is_sequence() && apply["steps"].is_sequence());
    assert_eq!(gitlab[".apply"]["resource_group"], "infrastructure");
    assert_eq!(gitlab["plan"]["allow_failure"]["exit_codes"][0], u64::from(CHANGES));
}

/// Every command line of the examples is one that infrop understands.
#[test]
fn commands_of_the_pages_are_understood() {
    let mut seen = 0;
    for line in APPLY.lines().chain(CI.lines()).filter(|line| !line.contains("COMMAND")) {
        for start in line.match_indices("infrop ").map(|(start, _)| start) {
            let words = line.get(start..).unwrap_or_default().split(['`', '>', '|', ')', ';', '#']).next();
            let words =
                words.unwrap_or_default().replace("\"$REMOVALS\"", "1").replace("\"${options[@]}\"", "");
            let words = words.split(" 2").next().unwrap_or_default();
            if !words.contains(" -f ") {
                continue;
            }
            let words = words.replace("'new disk, ask anna'", "why");
            let parsed = Cli::try_parse_from(words.split_whitespace());
            assert!(
                parsed.is_ok(),
                "{line}\n{}",
                parsed.err().map(|error| error.to_string()).unwrap_or_default()
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn every_command_and_exit_code_has_its_place() {
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        assert!(APPLY.contains(&format!("`infrop {}", command.get_name())), "{}", command.get_name());
    }
    for code in [DONE, FAILED, CHANGES, BLOCKED, TIMED_OUT, NOT_THE_WRITER, BAD_INPUT, INTERRUPTED] {
        assert!(APPLY.contains(&format!("\n| {code} | ")), "{code}");
    }
}
