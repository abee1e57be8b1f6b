// kv-profile: reads the calibrated settings of a model from a JSON file

#pragma once

#include "whisper-kv-view.h"

#include <string>

#define KV_PROFILE_SCHEMA 1

// decoder shape of the model a profile was made for, or of the one it is loaded into
struct kv_profile_shape {
    int n_layer;
    int n_head;
    int n_state;
    int n_vocab;
};

// Reads `path` into params. With a shape, the profile's model must have it. On failure params is untouched and
// `error` says what is wrong and where. Values are checked for type here, for range by kv_params_error().
bool kv_profile_load(const char * path, const kv_profile_shape * shape, whisper_kv_view_params & params, std::string & error);

whisper_kv_view_params kv_params_default();

// Params come from and go to callers that may have been compiled with an older, shorter struct. Reading takes what lies
// behind its size as default; writing leaves that alone, and fails if a setting would be lost. Empty or what is wrong.
std::string kv_params_read (const whisper_kv_view_params * from, whisper_kv_view_params & to);
std::string kv_params_write(const whisper_kv_view_params & from, whisper_kv_view_params * to);

// does a caller's struct that says this size end where ours does, or before?
bool kv_size_is_known(uint32_t size, size_t size_ours);

// what is wrong with the values themselves; empty if nothing is. Names and ranges as the command line spells them.
std::string kv_params_error(const whisper_kv_view_params & params);
