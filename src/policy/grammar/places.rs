//! What is compared by places: the area of a grant, and many paths at once.

use super::area::{Area, name_matches};
use crate::base::place::{Mounts, Place, Placed};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::path::{Path, PathBuf};

/// An area whose paths are places.
pub struct PlacedArea(pub Area);

impl PlacedArea {
    pub fn new(area: &Area, mounts: &Mounts) -> PlacedArea {
        PlacedArea::at(area, &mounts.place(area.path()))
    }

    pub fn at(area: &Area, place: &Place) -> PlacedArea {
        PlacedArea(match area {
            Area::Tree(_) => Area::Tree(place.to_path_buf()),
            Area::File(_) => Area::File(place.to_path_buf()),
            Area::Names { names, .. } => Area::Names {
                folder: place.to_path_buf(),
                names: names.clone(),
            },
        })
    }

    pub fn holds(&self, place: &Place) -> bool {
        self.0.holds(place)
    }

    /// Whether it lies below the place, or is there.
    pub fn lies_in(&self, place: &Place) -> bool {
        self.0.path().starts_with(&**place)
    }

    /// Whether both may name the same file. Two patterns of one folder may have a name in common.
    pub fn meets(&self, other: &PlacedArea) -> bool {
        let are_names = matches!(
            (&self.0, &other.0),
            (Area::Names { .. }, Area::Names { .. })
        );
        are_names && self.0.folder() == other.0.folder() || self.0.overlap(&other.0).is_some()
    }
}

/// Values by the places of the paths that they are about.
#[derive(Clone, Debug)]
pub struct PlaceIndex<T>(BTreeMap<Place, T>);

impl<T> Default for PlaceIndex<T> {
    fn default() -> PlaceIndex<T> {
        PlaceIndex(BTreeMap::new())
    }
}

impl<T: Clone> PlaceIndex<T> {
    pub fn insert(&mut self, path: &Path, value: T, mounts: &Mounts) {
        for place in mounts.places(path) {
            self.0.entry(place).or_insert_with(|| value.clone());
        }
    }

    /// The first that lies in the area, above it or below it, and counts.
    pub fn find<'a>(&'a self, area: &'a PlacedArea, counts: impl Fn(&T) -> bool) -> Option<&'a T> {
        let above = area
            .0
            .path()
            .ancestors()
            .filter_map(|above| self.0.get(above));
        above.chain(self.below(&area.0)).find(|value| counts(value))
    }

    fn below<'a>(&'a self, area: &'a Area) -> Box<dyn Iterator<Item = &'a T> + 'a> {
        let Area::Names { folder, names } = area else {
            let all = self.0.range::<Path, _>((Excluded(area.path()), Unbounded));
            return Box::new(
                all.take_while(|(place, _)| place.starts_with(area.path()))
                    .map(|(_, value)| value),
            );
        };
        let mut next = Excluded(folder.clone());
        let children = std::iter::from_fn(move || {
            let from = next.as_ref().map(|path| path.as_path());
            let (place, value) = self.0.range::<Path, _>((from, Unbounded)).next()?;
            let name = place.strip_prefix(folder).ok()?.iter().next()?.to_owned();
            // No name lies between this one and its end with a NUL, and all that is below this one
            // lies before that.
            let mut end = name.clone();
            end.push("\0");
            next = Included(folder.join(end));
            Some((name, value))
        });
        Box::new(
            children
                .filter(|(name, _)| name.to_str().is_some_and(|name| name_matches(names, name)))
                .map(|it| it.1),
        )
    }
}

/// Files that no tool may write: those registered with this host, and its own.
#[derive(Clone, Debug, Default)]
pub struct Protected {
    pub paths: BTreeSet<PathBuf>,
    /// A folder in which no tool makes files, whatever their names: this host keeps its records
    /// there.
    pub records: Option<PathBuf>,
    pub places: Placed<PlaceIndex<PathBuf>>,
}

impl Protected {
    pub fn add(&mut self, path: PathBuf) {
        self.places
            .update(|mounts, places| places.insert(&path, path.clone(), mounts));
        self.paths.insert(path);
    }

    pub fn places(&self, mounts: &Mounts) -> PlaceIndex<PathBuf> {
        let mut places = PlaceIndex::default();
        self.paths
            .iter()
            .for_each(|path| places.insert(path, path.clone(), mounts));
        places
    }
}
