//! node-agent: the host daemon of infrop.

fn main() -> std::process::ExitCode {
    node_agent::cli::run()
}
