// embed: transcribes raw audio from standard input through a reduced view; the example of the README
//
//     ffmpeg -i clip.mp3 -f f32le -ac 1 -ar 16000 - | embed ggml-base.bin en

#include "whisper.h"
#include "whisper-kv-view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float * read_samples(FILE * file, int * n_samples) {
    size_t  n    = 0, size = 16000;
    float * data = malloc(size*sizeof(float));

    while (data) {
        n += fread(data + n, sizeof(float), size - n, file);
        if (n < size) {
            break;
        }
        size *= 2;
        data  = realloc(data, size*sizeof(float));
    }

    *n_samples = (int) n;
    return data;
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL LANGUAGE < f32le mono 16 kHz audio\n", argv[0]);
        return 2;
    }

    const char * language = argv[2];

    if (strcmp(language, "auto") != 0 && whisper_lang_id(language) < 0) {
        return 2; // whisper_lang_id() has said why
    }

    int     n_samples = 0;
    float * samples   = read_samples(stdin, &n_samples);

    if (!samples || n_samples == 0) {
        fprintf(stderr, samples ? "no audio on standard input\n" : "out of memory\n");
        return 2;
    }

    struct whisper_context * ctx = whisper_init_from_file_with_params(argv[1], whisper_context_default_params());
    if (!ctx) {
        return 1;
    }

    if (!whisper_is_multilingual(ctx) && strcmp(language, "en") != 0) {
        fprintf(stderr, "language '%s': the model knows English only\n", language);
        whisper_free(ctx);
        return 2;
    }

    // 192 positions instead of 1500 at each step, unsure steps once more over all of them
    struct whisper_kv_view_params view = { .size = sizeof(view) };
    whisper_kv_view_default_params(&view);
    view.rule   = WHISPER_KV_RULE_PADSINK_TRACK;
    view.budget = 192;
    view.tau    = 0.4f;

    char message[256];
    if (whisper_kv_view_check(ctx, &view, message, sizeof(message)) != 0 || whisper_kv_view_set(ctx, &view) != 0) {
        fprintf(stderr, "no reduced view: %s\n", message);
        whisper_free(ctx);
        return 1;
    }

    struct whisper_full_params params = whisper_full_default_params(WHISPER_SAMPLING_GREEDY);
    params.language       = language;
    params.print_progress = false;

    const int code = whisper_full(ctx, params, samples, n_samples);

    for (int i = 0; code == 0 && i < whisper_full_n_segments(ctx); ++i) {
        printf("%s\n", whisper_full_get_segment_text(ctx, i));
    }

    struct whisper_kv_view_counters counters = { .size = sizeof(counters) };
    whisper_kv_view_get_counters(ctx, NULL, &counters);
    fprintf(stderr, "%lld steps, %lld of them executed again, %.1f MB read\n",
            (long long) counters.n_steps, (long long) counters.n_reexec, counters.n_bytes_read/1e6);

    free(samples);
    whisper_free(ctx);

    return code == 0 ? 0 : 1;
}
