//! How a call ended, read once: what all renderings here are made of.

use crate::base::json::Text;
use crate::executor::{ContentPlaces, Inlined, is_picture};
use crate::fault::Fault;
use crate::quantity::{LARGE_TEXT_BYTES, MAX_OBSERVATION_BYTES};
use crate::service::{CallResult, ClientCall, Report, output};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// What a call answered, at most `MAX_OBSERVATION_BYTES` together.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Of a failure: its sentence.
    pub media: Vec<Media>,
    pub is_success: bool,
    /// The parts that were sent are the whole answer.
    pub is_streamed: bool,
    /// The paths here of pictures that are stored.
    pub stored_pictures: Vec<String>,
    /// The client runs it: nothing was answered yet.
    pub client: Option<ClientCall>,
}

/// A piece of an answer. Data is base64.
#[derive(Clone, Debug, PartialEq)]
pub enum Media {
    Text(String),
    Image {
        media_type: String,
        data: String,
    },
    File {
        name: String,
        media_type: String,
        data: String,
    },
}

impl Media {
    fn bytes(&self) -> usize {
        match self {
            Media::Text(text) => text.len(),
            Media::Image { data, .. } | Media::File { data, .. } => data.len(),
        }
    }

    /// Where only text can stand.
    pub(super) fn in_words(&self) -> String {
        match self {
            Media::Text(text) => text.clone(),
            Media::Image { media_type, data } => left_out(media_type, data.len()),
            Media::File {
                name,
                media_type,
                data,
            } => format!("{name}: {}", left_out(media_type, data.len())),
        }
    }
}

fn left_out(media_type: &str, base64: usize) -> String {
    format!("[{media_type}, {} bytes]", base64 / 4 * 3)
}

/// A block of `$content`, whose form was checked.
#[derive(Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
enum Block {
    Text { text: String },
    Image { data: String, mime_type: String },
    Audio { data: String, mime_type: String },
    ResourceLink { uri: String, name: String },
    Resource { resource: Embedded },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Embedded {
    uri: String,
    mime_type: Option<String>,
    text: Option<String>,
    blob: Option<String>,
}

impl From<Block> for Media {
    fn from(block: Block) -> Media {
        let file = |name: &str, media_type: Option<String>, data| Media::File {
            name: name.rsplit('/').next().unwrap_or_default().to_owned(),
            media_type: media_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
            data,
        };
        match block {
            Block::Text { text } => Media::Text(text),
            Block::Image { data, mime_type } => Media::Image {
                media_type: mime_type,
                data,
            },
            Block::Audio { data, mime_type } => file("audio", Some(mime_type), data),
            Block::ResourceLink { uri, name } => Media::Text(format!("{name}: {uri}")),
            Block::Resource { resource } => match (resource.text, resource.blob) {
                (_, Some(blob)) => file(&resource.uri, resource.mime_type, blob),
                (text, None) => Media::Text(text.unwrap_or_default()),
            },
        }
    }
}

impl Ended {
    pub fn failed(tool: &str, fault: &Fault) -> Ended {
        Ended {
            media: vec![Media::Text(output::failed(tool, fault))],
            is_success: false,
            is_streamed: false,
            stored_pictures: Vec::new(),
            client: None,
        }
    }

    fn at_client(call: ClientCall) -> Ended {
        Ended {
            media: Vec::new(),
            is_success: true,
            is_streamed: false,
            stored_pictures: Vec::new(),
            client: Some(call),
        }
    }

    /// Reads the answer of a report, within the time of its call.
    pub async fn of(report: Report) -> Ended {
        if let CallResult::RequiresAction(call) = report.outcome {
            return Ended::at_client(call);
        }
        let read = match &report.outcome {
            CallResult::Output(answer) => {
                let places = answer.content.clone();
                answer
                    .read(false, move |text| media_of(text, places.as_ref()))
                    .await
            }
            other => match other.fault() {
                Some(fault) => return Ended::failed(&report.tool, fault),
                None => Ok(vec![Media::Text(String::new())]),
            },
        };
        let mut media = match read {
            Ok(media) => media,
            Err(late) => return Ended::failed(&report.tool, &late),
        };
        media.extend(report.left_files().map(Media::Text));
        let artifacts = report.observed.artifacts.iter();
        let inlined = artifacts.filter_map(|artifact| artifact.inlined.clone());
        media.extend(inlined.map(|Inlined { media_type, b64 }| Media::Image {
            media_type,
            data: b64,
        }));
        let pictures = report.stored();
        let pictures = pictures.filter(|(file, _)| is_picture(&file.media_type));
        Ended {
            media: bounded(media),
            is_success: true,
            is_streamed: report.delivery.streamed,
            stored_pictures: pictures
                .map(|(file, _)| format!("/v1/artifacts/{}", file.id))
                .collect(),
            client: None,
        }
    }

    /// All of it as text: the sentence of a failure; else the answer, a text as it is and anything
    /// else as JSON.
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.media.iter().map(Media::in_words).collect();
        texts.join("\n")
    }

    /// The answer as a value, where it is JSON and not large.
    pub fn value(&self) -> Option<Value> {
        match self.media.first() {
            Some(Media::Text(text)) if self.is_success && text.len() <= LARGE_TEXT_BYTES => {
                serde_json::from_str(text).ok()
            }
            _ => None,
        }
    }

    pub fn bytes(&self) -> usize {
        self.media.iter().map(Media::bytes).sum()
    }
}

fn media_of(text: &Text, places: Option<&ContentPlaces>) -> Vec<Media> {
    let text = text.as_str();
    let Some((blocks, beside)) = places else {
        return vec![Media::Text(output::response(text))];
    };
    let blocks: Vec<&RawValue> = serde_json::from_str(&text[blocks.clone()]).unwrap_or_default();
    let blocks = blocks.into_iter().map(|block| {
        let read = serde_json::from_str::<Block>(block.get());
        read.map_or_else(|_| Media::Text(block.get().to_owned()), Media::from)
    });
    let beside = beside.clone().map(|place| Media::Text(text[place].into()));
    blocks.chain(beside).collect()
}

/// Cuts texts, and says the size of media, beyond what a model reads at once.
fn bounded(media: Vec<Media>) -> Vec<Media> {
    let mut room = MAX_OBSERVATION_BYTES;
    let bound = |piece: Media| {
        let fits = piece.bytes() <= room;
        let piece = match piece {
            _ if fits => piece,
            Media::Text(text) => {
                let head = text.floor_char_boundary(room);
                Media::Text(format!(
                    "{}…[cut {} bytes]",
                    &text[..head],
                    text.len() - head
                ))
            }
            other => Media::Text(other.in_words()),
        };
        room = room.saturating_sub(piece.bytes());
        piece
    };
    media.into_iter().map(bound).collect()
}
