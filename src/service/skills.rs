//! `core:list-skills` and `core:read-skill`, for clients that do not know skills by themselves.

use super::catalog::Catalog;
use super::readiness::Readiness;
use super::request::Caller;
use crate::base::text;
use crate::executor::ToolSender;
use crate::executor::method::{Answering, MethodCall, SKILL_SERVICE, ServiceMethod};
use crate::fault::{Fault, Kind};
use crate::manifest::SKILL_FILE;
use crate::registry::{Tool, read_skill_file};
use serde_json::{Value, json};
use std::sync::Arc;

/// Most scripts of a skill, and characters of its description, in the list of all.
const MAX_SCRIPTS: usize = 20;
const MAX_DESCRIPTION_CHARS: usize = 1024;
/// Most bytes of a file that a model is shown.
const MAX_TEXT_BYTES: usize = 256 << 10;

#[derive(Clone)]
struct SkillTool {
    catalog: Arc<Catalog>,
    /// It reads one; otherwise it lists all.
    reads: bool,
}

/// Gives the tools of skills what answers them.
pub(super) fn register(catalog: &Arc<Catalog>) {
    for (name, reads) in [("list", false), ("read", true)] {
        let catalog = catalog.clone();
        let methods = catalog.methods().clone();
        methods.register(SKILL_SERVICE, name, Arc::new(SkillTool { catalog, reads }));
    }
}

/// The skills that a caller (`Catalog::who`) may know.
pub fn skills_of(catalog: &Catalog, caller: &Caller) -> Result<Vec<Arc<Tool>>, Fault> {
    let mut tools = catalog.list(caller)?;
    tools.retain(|tool| tool.manifest.skill().is_some());
    Ok(tools)
}

impl SkillTool {
    fn answer(&self, caller: &Caller, input: &Value) -> Result<Value, Fault> {
        let skills = skills_of(&self.catalog, caller)?;
        if self.reads {
            return read(&skills, input);
        }
        let skills: Vec<Value> = skills.iter().map(|skill| self.line(skill)).collect();
        Ok(json!({ "skills": skills }))
    }

    fn line(&self, tool: &Arc<Tool>) -> Value {
        let manifest = &tool.manifest;
        let scripts = manifest.skill().into_iter().flat_map(|it| it.scripts());
        let mut scripts: Vec<&str> = scripts.map(|it| it.0.as_str()).collect();
        if scripts.len() > MAX_SCRIPTS {
            scripts.truncate(MAX_SCRIPTS);
            scripts.push("… core:read-skill names all");
        }
        json!({
            "name": manifest.display_name,
            "description": text::head(&manifest.description, MAX_DESCRIPTION_CHARS),
            "scripts": scripts,
            "runs": matches!(self.catalog.readiness(tool), Readiness::Ready),
        })
    }
}

fn refused(why: impl Into<String>) -> Fault {
    Fault::new(Kind::ParameterValidationError, why)
}

/// The text of one file, and the names of all.
fn read(skills: &[Arc<Tool>], input: &Value) -> Result<Value, Fault> {
    let name = input["skill"].as_str().unwrap_or_default();
    let path = input["path"].as_str().unwrap_or(SKILL_FILE);
    let mut all = skills.iter();
    let Some(tool) = all.find(|it| it.manifest.display_name == name) else {
        let words = "Unknown skill: core:list-skills names all.";
        return Err(refused(words));
    };
    let bytes = read_skill_file(tool, path);
    let bytes = bytes.map_err(|why| refused("This file cannot be read.").person(why))?;
    let content = String::from_utf8(bytes).ok();
    let Some(content) = content.filter(|it| it.len() <= MAX_TEXT_BYTES) else {
        let words = "This file is not text, or is larger than 256 KiB: let a script read it.";
        return Err(refused(words));
    };
    Ok(json!({
        "skill": name,
        "path": path,
        "content": text::printable_block(&content),
        "files": tool.manifest.skill().map(|skill| &skill.files),
    }))
}

impl ServiceMethod for SkillTool {
    fn call<'a>(
        &'a self,
        call: &'a MethodCall,
        arguments: Value,
        _: &'a ToolSender,
    ) -> Answering<'a> {
        let own = self.clone();
        Box::pin(async move {
            let caller = Caller::named(&call.context.user);
            let answer = move || own.answer(&caller, &arguments);
            call.context.deadline.run(true, answer).await?
        })
    }
}
