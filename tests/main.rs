mod policy;
mod policy_files;
