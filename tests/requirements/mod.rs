//! Requirements that only a whole host can show: the real binary, or the real service with the real executors
//! behind the real walls, judged from outside. Each file is one feature.

mod audit_segments;
mod builtin_tools;
mod documents;
mod effective_grants;
mod error_types;
mod folders_of_others;
mod inherited_signals;
mod interpreters;
mod killed_host;
mod languages;
mod last_denials;
mod listing;
mod no_shell;
mod one_road;
mod planted;
mod record_length;
mod reload;
mod script_location;
mod script_ownership;
mod search_path;
mod silent_files;
mod swapped_files;
mod tool_logs;
