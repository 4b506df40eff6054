//! The observation that an agent reads. Markup of a tool or a caller is written as entities, what cannot be seen as an escape.

use crate::base::text;
use crate::quantity::MAX_OBSERVATION_BYTES;
use crate::service::{Report, format};

/// The sentence on how an action ended. `tool`: the id by which the agent knows the tool.
pub fn sentence(tool: &str, report: &Report) -> String {
    let sentence = match (&report.error, &report.output_data) {
        (Some(fault), _) => format::failed(tool, &format::for_model(fault)),
        (None, Some(output)) => format::succeeded(tool, output),
        (None, None) => format!("Tool {tool} executed successfully. Output: null"),
    };
    let end = sentence.floor_char_boundary(MAX_OBSERVATION_BYTES);
    let cut = sentence.len() - end;
    if cut > 0 { format!("{}…[cut {cut} bytes]", &sentence[..end]) } else { sentence }
}

/// The observation as text.
pub fn rendered(attributes: &[(&str, &str)], tool: &str, sentence: &str, notes: &[String]) -> String {
    let attribute = |(name, value): &(&str, &str)| format!(" {name}=\"{}\"", inert(value).replace('"', "&quot;"));
    let attributes = attributes.iter().map(attribute);
    let notes = notes.iter().map(|note| format!("  <note>{}</note>\n", inert(note)));
    format!(
        "<OBSERVATION{}>\n  <tool_id>{}</tool_id>\n  <content>{}</content>\n{}</OBSERVATION>",
        attributes.collect::<String>(),
        inert(tool),
        inert(sentence),
        notes.collect::<String>()
    )
}

/// A text in which nothing is markup.
fn inert(text: &str) -> String {
    // Control characters become \uXXXX, but for line breaks and tabs.
    let visible = text.split('\t').map(text::escaped_json).collect::<Vec<_>>().join("\t");
    let mut out = String::with_capacity(visible.len());
    for c in visible.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}
