//! A static embedding model in a folder, as Model2Vec writes it: a vector for each piece of a word, of
//! which a text has the mean. Only a build with the feature `static-model` reads one.

use std::path::{Path, PathBuf};

/// What lies in the folder, and the most bytes of each.
const FILES: [(&str, u64); 3] = [
    ("tokenizer.json", 256 << 20),
    ("model.safetensors", 1 << 30),
    ("config.json", 1 << 20),
];

pub fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    FILES.iter().map(|(name, _)| folder.join(name))
}

#[cfg(feature = "static-model")]
pub struct StaticModel(model2vec_rs::model::StaticModel);

#[cfg(feature = "static-model")]
impl StaticModel {
    pub fn read(folder: &Path) -> Result<StaticModel, String> {
        use crate::base::files::{checked, without_links};
        use crate::base::text::path;
        use nix::fcntl::OFlag;

        let [tokenizer, model, config] = FILES.map(|(name, most)| {
            let file = folder.join(name);
            let opened = without_links(&file, OFlag::O_RDONLY);
            let opened = opened.map(Into::into).map_err(Into::into);
            checked(opened, most, |_| None).map_err(|why| format!("{}: {why}", path(&file)))
        });
        let model = model2vec_rs::model::StaticModel::from_bytes(tokenizer?, model?, config?, None);
        model
            .map(StaticModel)
            .map_err(|why| format!("{}: it cannot be read as a model: {why:#}", path(folder)))
    }

    /// A vector for each text: all zeros where the model knows no piece of it.
    pub fn encode(&self, texts: &[String]) -> Vec<Vec<f32>> {
        self.0.encode(texts)
    }
}

#[cfg(not(feature = "static-model"))]
pub enum StaticModel {}

#[cfg(not(feature = "static-model"))]
impl StaticModel {
    pub fn read(_: &Path) -> Result<StaticModel, String> {
        Err("this build reads no model: build it with `--features static-model`".to_owned())
    }

    pub fn encode(&self, _: &[String]) -> Vec<Vec<f32>> {
        match *self {}
    }
}
