//! The command line, one file for each group of verbs.

mod advice;
mod allow;
mod audit;
mod call;
mod check;
mod completions;
mod diff;
mod draft;
mod draft_api;
mod edit;
mod hostile;
mod mcp_install;
mod new;
mod terminal;
