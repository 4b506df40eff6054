//! `wasi:filesystem` as wasmtime-wasi has it. What it refuses is reported; nothing is decided here.
//!
//! Metadata hashes, by which a guest tells files apart, are salted for each call: they are made of inode numbers, which a
//! tmpfs counts up with every file, and so would tell of earlier calls. What is reported of a refusal depends only on the
//! path that was asked for and on what was granted.

use super::guest::Guest;
use super::refused::{DenialReason, Refused, below, leads_out};
use wasmtime::component::Resource;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    self, Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntryStream, ErrorCode, Filesize,
    HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::bindings::io::streams::{InputStream, OutputStream};
use wasmtime_wasi::p2::{FsError, FsResult};

type Handle = Resource<Descriptor>;

/// What an operation was to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Reads,
    Writes,
    Links,
}
use Doing::{Links, Reads, Writes};

impl Guest {
    fn name(&self, handle: u32) -> &str {
        self.names.get(&handle).map_or("", String::as_str)
    }

    /// Passes an answer on; a refusal is told.
    fn answered<T>(&mut self, doing: Doing, handle: u32, path: Option<&str>, answer: FsResult<T>) -> FsResult<T> {
        if let Err(error) = &answer
            && let Some(why) = self.why(doing, handle, path, error)
        {
            let name = self.name(handle);
            let path = path.map_or_else(|| name.to_owned(), |path| below(name, path));
            self.watch.saw(Refused::File { write: doing != Reads, path, why });
        }
        answer
    }

    fn why(&mut self, doing: Doing, handle: u32, path: Option<&str>, error: &FsError) -> Option<DenialReason> {
        let code = *error.downcast_ref()?;
        let whole = |path| below(self.name(handle), path);
        let holds = |path| self.granted.as_ref().is_some_and(|granted| granted.holds(&whole(path), doing != Reads));
        match code {
            ErrorCode::NotPermitted if doing != Reads && self.is_read_only(handle) => Some(DenialReason::ReadOnly),
            ErrorCode::NotPermitted => Some(match path {
                Some(path) if leads_out(path) && holds(path) => DenialReason::Roundabout,
                Some(path) if leads_out(path) => DenialReason::NotGranted,
                _ if doing == Links => DenialReason::MakesLinks,
                _ => DenialReason::Link,
            }),
            ErrorCode::Access if doing == Links => Some(DenialReason::MakesLinks),
            // Not in view, whether or not it is there.
            ErrorCode::NoEntry => {
                path.filter(|path| self.is_out_of_view(&whole(path))).map(|_| DenialReason::NotGranted)
            }
            _ => None,
        }
    }

    /// Whether only files of some names are in view somewhere, and this one is in no grant.
    fn is_out_of_view(&self, path: &str) -> bool {
        self.granted.as_ref().is_some_and(|granted| granted.in_part && !granted.touches(path))
    }

    fn is_read_only(&self, handle: u32) -> bool {
        let perms = match self.table.get(&Handle::new_borrow(handle)) {
            Ok(Descriptor::Dir(dir)) => dir.perms,
            Ok(Descriptor::File(file)) => file.perms,
            Err(_) => return false,
        };
        perms.write_not_permitted()
    }

    fn salted(&self, hash: FsResult<MetadataHashValue>) -> FsResult<MetadataHashValue> {
        let MetadataHashValue { lower, upper } = hash?;
        let half = |half: u8| self.salt(&(lower, upper, half));
        Ok(MetadataHashValue { lower: half(0), upper: half(1) })
    }
}

impl preopens::Host for Guest {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Handle, String)>> {
        let Some(folders) = &self.folders else { return Ok(Vec::new()) };
        let opened = folders.give(&mut self.table)?;
        for (handle, name) in &opened {
            let shown = self.granted.as_ref().and_then(|granted| granted.relative(name));
            self.names.insert(handle.rep(), shown.unwrap_or_else(|| name.clone()));
        }
        Ok(opened)
    }
}

impl types::Host for Guest {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn filesystem_error_code(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        self.filesystem().filesystem_error_code(error)
    }
}

/// Operations on a handle that need no eye.
macro_rules! passed_on {
    ($($name:ident($($given:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&mut self, handle: Handle $(, $given: $kind)*) -> $answer {
            self.filesystem().$name(handle $(, $given)*).await
        })*
    };
}

/// Operations on a handle, or on a path below it, that may be refused.
macro_rules! watched {
    ($($doing:ident $name:ident($($given:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&mut self, handle: Handle $(, $given: $kind)*) -> FsResult<$answer> {
            let number = handle.rep();
            let answer = self.filesystem().$name(handle $(, $given)*).await;
            self.answered($doing, number, None, answer)
        })*
    };
}

macro_rules! watched_at {
    ($($doing:ident $name:ident($($given:ident: $kind:ty,)* @path $(, $more:ident: $then:ty)*) -> $answer:ty;)*) => {
        $(async fn $name(&mut self, handle: Handle $(, $given: $kind)*, path: String $(, $more: $then)*)
            -> FsResult<$answer> {
            let (number, asked) = (handle.rep(), path.clone());
            let answer = self.filesystem().$name(handle $(, $given)*, path $(, $more)*).await;
            self.answered($doing, number, Some(&asked), answer)
        })*
    };
}

impl HostDescriptor for Guest {
    passed_on! {
        advise(offset: Filesize, length: Filesize, advice: Advice) -> FsResult<()>;
        sync_data() -> FsResult<()>;
        sync() -> FsResult<()>;
        get_flags() -> FsResult<DescriptorFlags>;
        get_type() -> FsResult<DescriptorType>;
        stat() -> FsResult<DescriptorStat>;
        read(length: Filesize, offset: Filesize) -> FsResult<(Vec<u8>, bool)>;
        read_directory() -> FsResult<Resource<DirectoryEntryStream>>;
        is_same_object(other: Handle) -> wasmtime::Result<bool>;
    }

    watched! {
        Writes set_size(size: Filesize) -> ();
        Writes set_times(read: NewTimestamp, written: NewTimestamp) -> ();
        Writes write(bytes: Vec<u8>, offset: Filesize) -> Filesize;
    }

    watched_at! {
        Writes create_directory_at(@path) -> ();
        Writes remove_directory_at(@path) -> ();
        Writes unlink_file_at(@path) -> ();
        Writes set_times_at(flags: PathFlags, @path, read: NewTimestamp, written: NewTimestamp) -> ();
        Reads stat_at(flags: PathFlags, @path) -> DescriptorStat;
        Reads readlink_at(@path) -> String;
        Links symlink_at(target: String, @path) -> ();
    }

    async fn open_at(
        &mut self,
        handle: Handle,
        follow: PathFlags,
        path: String,
        how: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Handle> {
        let writes = how.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE) || flags.contains(DescriptorFlags::WRITE);
        let (number, asked) = (handle.rep(), path.clone());
        let answer = self.filesystem().open_at(handle, follow, path, how, flags).await;
        if let Ok(opened) = &answer {
            let name = below(self.name(number), &asked);
            self.names.insert(opened.rep(), name);
        }
        self.answered(if writes { Writes } else { Reads }, number, Some(&asked), answer)
    }

    async fn rename_at(&mut self, handle: Handle, path: String, to: Handle, name: String) -> FsResult<()> {
        let (number, asked, other, wanted) = (handle.rep(), path.clone(), to.rep(), name.clone());
        let answer = self.filesystem().rename_at(handle, path, to, name).await;
        self.at_either(Writes, (number, &asked), (other, &wanted), answer)
    }

    async fn link_at(&mut self, at: Handle, follow: PathFlags, path: String, to: Handle, name: String) -> FsResult<()> {
        let (number, asked, other, wanted) = (at.rep(), path.clone(), to.rep(), name.clone());
        let answer = self.filesystem().link_at(at, follow, path, to, name).await;
        self.at_either(Links, (number, &asked), (other, &wanted), answer)
    }

    fn read_via_stream(&mut self, handle: Handle, offset: Filesize) -> FsResult<Resource<InputStream>> {
        self.filesystem().read_via_stream(handle, offset)
    }

    fn write_via_stream(&mut self, handle: Handle, offset: Filesize) -> FsResult<Resource<OutputStream>> {
        let number = handle.rep();
        let answer = self.filesystem().write_via_stream(handle, offset);
        self.answered(Writes, number, None, answer)
    }

    fn append_via_stream(&mut self, handle: Handle) -> FsResult<Resource<OutputStream>> {
        let number = handle.rep();
        let answer = self.filesystem().append_via_stream(handle);
        self.answered(Writes, number, None, answer)
    }

    async fn metadata_hash(&mut self, handle: Handle) -> FsResult<MetadataHashValue> {
        let hash = self.filesystem().metadata_hash(handle).await;
        self.salted(hash)
    }

    async fn metadata_hash_at(&mut self, at: Handle, follow: PathFlags, path: String) -> FsResult<MetadataHashValue> {
        let (number, asked) = (at.rep(), path.clone());
        let hash = self.filesystem().metadata_hash_at(at, follow, path).await;
        let hash = self.salted(hash);
        self.answered(Reads, number, Some(&asked), hash)
    }

    fn drop(&mut self, handle: Handle) -> wasmtime::Result<()> {
        HostDescriptor::drop(&mut self.filesystem(), handle)
    }
}

impl Guest {
    /// Of an operation with two paths the one that is refused is told: the second, unless the first is the reason.
    fn at_either<T>(
        &mut self,
        doing: Doing,
        (from, path): (u32, &str),
        (to, name): (u32, &str),
        answer: FsResult<T>,
    ) -> FsResult<T> {
        let first = self.is_read_only(from) || leads_out(path) || self.is_out_of_view(&below(self.name(from), path));
        let (handle, path) = if first { (from, path) } else { (to, name) };
        self.answered(doing, handle, Some(path), answer)
    }
}

impl HostDirectoryEntryStream for Guest {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<types::DirectoryEntry>> {
        self.filesystem().read_directory_entry(stream).await
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        HostDirectoryEntryStream::drop(&mut self.filesystem(), stream)
    }
}
