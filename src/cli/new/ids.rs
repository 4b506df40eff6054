//! Which ids a manifest may have.

use crate::base::text;
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::Settings;
use crate::manifest::skill::NAMESPACE;
use crate::registry::{self, Tool};
use anyhow::bail;

/// The tools whose manifests have an id.
pub fn tools_with(settings: &Settings, id: &str) -> anyhow::Result<Vec<Tool>> {
    let files = registry::DirectToolLoader::new(settings.tools.clone(), settings.scripts.clone());
    let found = registry::Source::discover(&files).map_err(|why| Refusal::new(Exit::Host, why))?;
    let mut tools = found.tools;
    tools.retain(|tool| tool.manifest.id.eq_ignore_ascii_case(id));
    Ok(tools)
}

/// Refuses an id that no file may have, or that these others have: both would be disabled.
pub fn check_free(id: &str, others: &[Tool]) -> anyhow::Result<()> {
    let (namespace, name) = id.split_once(':').unwrap_or(("custom", id));
    if namespace.eq_ignore_ascii_case(registry::CORE) {
        bail!(
            "the namespace 'core' is compiled into toolhost: choose another, for example \
            custom:{name}"
        );
    }
    if namespace.eq_ignore_ascii_case(NAMESPACE) {
        bail!(
            "the namespace 'skill' is for folders with a SKILL.md: choose another, for example custom:{name}"
        );
    }
    if let Some(other) = others.first() {
        let place = text::path(&other.site.manifest);
        bail!("{place} has the id {id} already: choose another name");
    }
    Ok(())
}
