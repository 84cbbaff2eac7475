//! The `infrop` command. Everything is in the library, so that tests reach it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    infrop::cli::run()
}
