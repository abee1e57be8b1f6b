// ggml-load-modules: part of libggml in a portable build, whose CPU backend is a module for each kind of CPU
//
// Upstream leaves it to the program to load one, from the program's own folder; most of its programs, and every program
// that embeds libwhisper, would find no CPU at all. The modules stand beside this library, so it loads the best one
// itself. A program that asks for them again gets the same one.

#include "ggml-backend.h"
#include "ggml.h"

#include <dlfcn.h>

#include <cstdio>
#include <string>

// the folder of this library, with a slash at its end
static std::string ggml_modules_folder() {
    Dl_info info;
    if (!dladdr((const void *) ggml_modules_folder, &info)) {
        return "./";
    }

    const std::string path = info.dli_fname;

    return path.substr(0, path.rfind('/') + 1);
}

__attribute__((constructor)) static void ggml_load_modules() {
    const std::string folder = ggml_modules_folder();

    // the program could not yet say where it wants messages, and that a module was loaded is none to a user
    ggml_log_callback callback;
    void *            user_data;
    ggml_log_get(&callback, &user_data);
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    ggml_backend_load_all_from_path(folder.c_str());

    ggml_log_set(callback, user_data);

    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        fprintf(stderr, "libggml: no module libggml-cpu-*.so in '%s' runs on this CPU\n", folder.c_str());
    }
}
