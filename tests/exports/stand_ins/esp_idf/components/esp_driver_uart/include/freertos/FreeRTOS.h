#define portMAX_DELAY 0xFFFFFFFFu
